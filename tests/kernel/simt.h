// CUDA's threads on a CPU, one block at a time: as much as the activation kernels need.
//
// A thread is a fiber that runs until it waits for others. The order in which the threads of a block
// get their turn is the caller's: what only works in one order lacks a barrier. Threads that wait at
// different places, or for one that has left, are an error here, on a GPU a hang or worse.
#pragma once

#include <cuda_runtime.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace simt {

enum class Order { Forward, Backward, Shuffled };

// What the kernels' host code asks the device for; a runner sets it.
struct Device {
  int numSms = 148;
  int ctasPerSm = 8;
};

struct Launch {
  std::string kernel;
  dim3 grid, block;
  bool pdl = false;
  bool synchronized = false;  // on the primary grid
  long barriers = 0;          // of whole blocks
  long waits = 0;             // of single threads, at barriers and shuffles
  long left_behind = 0;       // barriers that threads had already left behind
  long busiest = 0;           // waits of the block that has most
};

constexpr int kWarp = 32;
constexpr size_t kStack = 64 * 1024;

enum class State { Runs, AtBarrier, AtShuffle, Left };

struct Fiber {
  ucontext_t first;
  jmp_buf here;
  std::unique_ptr<char[]> stack;
  bool started = false;
  State state = State::Left;
  unsigned mask = 0;      // of the shuffle it waits at
  int source = 0;         // lane whose value it asks for
  uint64_t given = 0, taken = 0;
};

inline Device device;
// Which wrong version of the code runs where the text has several; 0 for the right one.
inline int mutant = 0;
inline Order order = Order::Forward;
inline std::mt19937 random_order;
inline std::vector<Launch> launches;
inline std::function<void()> on_grid_dependency;  // what the primary grid has written, appears

inline uint3 thread_idx, block_idx;
inline dim3 block_dim, grid_dim;

inline std::vector<Fiber> fibers;
inline std::function<void()> body;
inline jmp_buf scheduler;
inline ucontext_t entry;
inline int current = -1;

[[noreturn]] inline void fail(char const* what) {
  std::fprintf(stderr, "simt: block (%u, %u, %u), thread %d: %s\n", block_idx.x, block_idx.y,
               block_idx.z, current, what);
  std::_Exit(3);
}

inline void yield() {
  if (_setjmp(fibers[current].here) == 0) _longjmp(scheduler, 1);
}

inline void trampoline() {
  for (;;) {
    body();
    fibers[current].state = State::Left;
    yield();
  }
}

inline void turn(int thread) {
  current = thread;
  thread_idx = {unsigned(thread), 0, 0};
  if (_setjmp(scheduler) != 0) return;
  Fiber& fiber = fibers[thread];
  if (fiber.started) _longjmp(fiber.here, 1);
  fiber.started = true;
  setcontext(&fiber.first);
}

inline void resize(int threads) {
  if (int(fibers.size()) == threads) return;
  fibers.clear();
  fibers.resize(threads);
  for (Fiber& fiber : fibers) {
    fiber.stack = std::make_unique<char[]>(kStack);
    getcontext(&fiber.first);
    fiber.first.uc_stack.ss_sp = fiber.stack.get();
    fiber.first.uc_stack.ss_size = kStack;
    fiber.first.uc_link = nullptr;
    makecontext(&fiber.first, trampoline, 0);
  }
}

inline void exchange(int first) {
  for (int lane = 0; lane < kWarp && first + lane < int(fibers.size()); lane++) {
    Fiber& fiber = fibers[first + lane];
    if (fiber.state != State::AtShuffle) continue;
    current = first + lane;
    if (!(fiber.mask >> lane & 1)) fail("takes part in a shuffle whose mask leaves it out");
    for (int other = 0; other < kWarp; other++) {
      if (!(fiber.mask >> other & 1)) continue;
      if (first + other >= int(fibers.size())) fail("shuffles with a lane that does not exist");
      Fiber& peer = fibers[first + other];
      if (peer.state == State::Left) fail("shuffles with a lane that has left");
      // Not yet there, or at another shuffle: wait, and deadlock if it never comes.
      if (peer.state != State::AtShuffle || peer.mask != fiber.mask) return;
    }
  }
  for (int lane = 0; lane < kWarp && first + lane < int(fibers.size()); lane++) {
    Fiber& fiber = fibers[first + lane];
    if (fiber.state != State::AtShuffle) continue;
    // A lane outside the mask gives nothing: poison, a quiet NaN to a float.
    bool const given = fiber.mask >> fiber.source & 1;
    fiber.taken = given ? fibers[first + fiber.source].given : ~uint64_t{0};
  }
  for (int lane = 0; lane < kWarp && first + lane < int(fibers.size()); lane++) {
    Fiber& fiber = fibers[first + lane];
    if (fiber.state == State::AtShuffle) fiber.state = State::Runs;
  }
}

inline void run_block(Launch& launch) {
  int const threads = int(block_dim.x);
  std::vector<int> turns(threads);
  std::iota(turns.begin(), turns.end(), 0);
  if (order == Order::Backward) std::reverse(turns.begin(), turns.end());
  for (Fiber& fiber : fibers) fiber.state = State::Runs;
  for (;;) {
    if (order == Order::Shuffled) std::shuffle(turns.begin(), turns.end(), random_order);
    bool moved = false;
    for (int thread : turns) {
      if (fibers[thread].state != State::Runs) continue;
      turn(thread);
      moved = true;
      launch.waits += fibers[thread].state != State::Left;
    }
    for (int first = 0; first < threads; first += kWarp) exchange(first);
    auto const in = [&](State state) {
      return std::count_if(fibers.begin(), fibers.end(),
                           [&](Fiber const& fiber) { return fiber.state == state; });
    };
    if (in(State::Left) == threads) return;
    if (in(State::AtBarrier) && in(State::AtBarrier) + in(State::Left) == threads) {
      launch.barriers++;
      launch.left_behind += in(State::Left) != 0;
      for (Fiber& fiber : fibers) {
        if (fiber.state == State::AtBarrier) fiber.state = State::Runs;
      }
    } else if (!moved && in(State::Runs) == 0) {
      fail("threads wait for each other at different places");
    }
  }
}

template <class Body>
void run_grid(Launch& launch, Body&& kernel) {
  body = kernel;
  block_dim = launch.block;
  grid_dim = launch.grid;
  resize(int(launch.block.x));
  long const blocks = long(launch.grid.x) * launch.grid.y * launch.grid.z;
  std::vector<long> turns(blocks);
  std::iota(turns.begin(), turns.end(), 0L);
  if (order == Order::Backward) std::reverse(turns.begin(), turns.end());
  if (order == Order::Shuffled) std::shuffle(turns.begin(), turns.end(), random_order);
  for (long block : turns) {
    block_idx = {unsigned(block % launch.grid.x), unsigned(block / launch.grid.x % launch.grid.y),
                 unsigned(block / launch.grid.x / launch.grid.y)};
    long const before = launch.waits;
    run_block(launch);
    launch.busiest = std::max(launch.busiest, launch.waits - before);
  }
}

inline std::string name_of(void* kernel) {
  Dl_info info{};
  if (!dladdr(kernel, &info) || !info.dli_sname) return "unknown";
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), std::free);
  std::string text = status == 0 ? name.get() : info.dli_sname;
  size_t const end = text.find('<');
  text = text.substr(0, end);
  return text.substr(text.rfind(':') + 1);
}

template <class Params>
cudaError_t launch(cudaLaunchConfig_t const* config, void (*kernel)(Params), Params const& params) {
  Launch launch;
  launch.kernel = name_of(reinterpret_cast<void*>(kernel));
  launch.grid = config->gridDim;
  launch.block = config->blockDim;
  if (launch.block.x == 0 || launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0 ||
      launch.grid.y > 65535 || launch.grid.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  for (unsigned i = 0; i < config->numAttrs; i++) {
    if (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      launch.pdl = config->attrs[i].val.programmaticStreamSerializationAllowed;
    }
  }
  launches.push_back(launch);
  // Without PDL the primary grid has ended before the first thread starts.
  if (!launch.pdl && on_grid_dependency) on_grid_dependency();
  run_grid(launches.back(), [&] { kernel(params); });
  return cudaSuccess;
}

inline void barrier() {
  fibers[current].state = State::AtBarrier;
  yield();
}

template <class T>
T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  Fiber& fiber = fibers[current];
  fiber.mask = mask;
  fiber.source = source;
  fiber.given = 0;
  std::memcpy(&fiber.given, &value, sizeof value);
  fiber.state = State::AtShuffle;
  yield();
  std::memcpy(&value, &fibers[current].taken, sizeof value);
  return value;
}

inline void grid_dependency() {
  Launch& launch = launches.back();
  if (!launch.synchronized && on_grid_dependency) on_grid_dependency();
  launch.synchronized = true;
}

}  // namespace simt

// No macros: a launch configuration has members of these names.
inline uint3 const& threadIdx = simt::thread_idx;
inline uint3 const& blockIdx = simt::block_idx;
inline dim3 const& blockDim = simt::block_dim;
inline dim3 const& gridDim = simt::grid_dim;

#undef __shared__
#define __shared__ static
#undef __global__
#define __global__

inline void __syncthreads() { simt::barrier(); }

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return simt::shuffle(mask, value, int(threadIdx.x % simt::kWarp) ^ lanes);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return simt::shuffle(mask, value, lane);
}
