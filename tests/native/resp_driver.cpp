// Drives RedisConnector by lines on standard input, one answer line each:
//
//   open PORT WORKERS TIMEOUT_MS [PASSWORD [USERNAME]]
//   get WAIT_MS SIZE KEY...      set WAIT_MS KEY=VALUE...
//   exists WAIT_MS KEY...        del WAIT_MS KEY...
//   close | descriptors | memory | calls
//   stress WAIT_MS THREADS ROUNDS KEYS SIZE calm|chaos
//
// A batch answers "done MS OK BOOLS BUFFERS TEXT": MS taken, 1 or 0, one 0/1 a
// key or "-", the GET's buffers in hex, joined by commas, or "-". "hang" says
// that no completion came within WAIT_MS.
#include "connector.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

using lmcache::connector::Completion;
using lmcache::connector::RedisConnector;
using Clock = std::chrono::steady_clock;

#ifdef COUNT_CALLS
// The linker's --wrap sends the connector's calls through here.
static std::atomic<long> receives{0}, polls{0}, sends{0};
extern "C" {
ssize_t __real_recv(int, void*, size_t, int);
ssize_t __wrap_recv(int fd, void* buf, size_t len, int flags) {
  ++receives;
  return __real_recv(fd, buf, len, flags);
}
ssize_t __real_recvmsg(int, struct msghdr*, int);
ssize_t __wrap_recvmsg(int fd, struct msghdr* msg, int flags) {
  ++receives;
  return __real_recvmsg(fd, msg, flags);
}
ssize_t __real_sendmsg(int, const struct msghdr*, int);
ssize_t __wrap_sendmsg(int fd, const struct msghdr* msg, int flags) {
  ++sends;
  return __real_sendmsg(fd, msg, flags);
}
ssize_t __real_writev(int, const struct iovec*, int);
ssize_t __wrap_writev(int fd, const struct iovec* iov, int n) {
  ++sends;
  return __real_writev(fd, iov, n);
}
int __real_poll(struct pollfd*, nfds_t, int);
int __wrap_poll(struct pollfd* fds, nfds_t n, int timeout) {
  if (timeout == 0) ++polls;  // the driver's own polls wait
  return __real_poll(fds, n, timeout);
}
}
#endif

static constexpr char kPoison = static_cast<char>(0xA5);

// Each buffer an allocation of its own, so that AddressSanitizer guards its ends.
using Buffer = std::unique_ptr<char[]>;

static Buffer poisoned(size_t size) {
  Buffer buffer(new char[size]);
  std::fill_n(buffer.get(), size, kPoison);
  return buffer;
}

static std::string to_hex(const char* bytes, size_t size) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * size);
  for (size_t i = 0; i < size; ++i) {
    const auto c = static_cast<unsigned char>(bytes[i]);
    hex += digits[c >> 4];
    hex += digits[c & 15];
  }
  return hex;
}

// Hex digits, or "@SIZE" for that many times a letter.
static std::string value_of(const std::string& hex) {
  if (hex[0] == '@') return std::string(std::stoul(hex.substr(1)), 'z');
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

static double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// The release has no socket time-out and takes no argument for one.
template <typename T>
static std::unique_ptr<T> make_connector(int port, int workers, int timeout_ms,
                                         const std::string& password, const std::string& username) {
  if constexpr (std::is_constructible_v<T, std::string, int, int, std::string, std::string, int>) {
    return std::make_unique<T>("127.0.0.1", port, workers, username, password, timeout_ms);
  } else {
    return std::make_unique<T>("127.0.0.1", port, workers, username, password);
  }
}

// Waits for completions of many threads, as the Python side does with one loop.
class Completions {
 public:
  explicit Completions(RedisConnector& connector)
      : connector_(connector), thread_([this] { drain(); }) {}
  ~Completions() {
    stop_ = true;
    thread_.join();
  }

  bool wait(uint64_t id, int wait_ms, Completion& out) {
    std::unique_lock<std::mutex> lk(mu_);
    if (!cv_.wait_for(lk, std::chrono::milliseconds(wait_ms),
                      [&] { return done_.count(id) > 0; })) {
      return false;
    }
    out = std::move(done_[id]);
    done_.erase(id);
    return true;
  }

 private:
  void drain() {
    while (!stop_) {
      struct pollfd p = {connector_.event_fd(), POLLIN, 0};
      if (::poll(&p, 1, 20) <= 0) continue;
      for (auto& completion : connector_.drain_completions()) {
        std::lock_guard<std::mutex> lk(mu_);
        done_[completion.future_id] = std::move(completion);
        cv_.notify_all();
      }
    }
  }

  RedisConnector& connector_;
  std::atomic<bool> stop_{false};
  std::mutex mu_;
  std::condition_variable cv_;
  std::map<uint64_t, Completion> done_;
  std::thread thread_;
};

static std::unique_ptr<RedisConnector> connector;
static std::unique_ptr<Completions> completions;

static void print_batch(uint64_t id, int wait_ms, const std::vector<Buffer>& buffers, size_t size) {
  const auto start = Clock::now();
  Completion done;
  if (!completions->wait(id, wait_ms, done)) {
    std::cout << "hang" << std::endl;
    return;
  }
  std::cout << "done " << ms_since(start) << ' ' << done.ok << ' ';
  for (uint8_t result : done.result_bytes) std::cout << (result ? '1' : '0');
  if (done.result_bytes.empty()) std::cout << '-';
  std::cout << ' ';
  if (buffers.empty() || size == 0) std::cout << '-';
  for (size_t i = 0; size > 0 && i < buffers.size(); ++i) {
    std::cout << (i ? "," : "") << to_hex(buffers[i].get(), size);
  }
  std::cout << ' ' << done.error << std::endl;
}

static void get(std::istringstream& words) {
  int wait_ms;
  size_t size;
  words >> wait_ms >> size;
  // Kept for ever: a batch that hangs may still write into them.
  static std::vector<std::vector<Buffer>> kept;
  kept.emplace_back();
  std::vector<std::string> keys;
  std::vector<void*> pointers;
  for (std::string key; words >> key;) {
    kept.back().push_back(poisoned(size));
    pointers.push_back(kept.back().back().get());
    keys.push_back(key);
  }
  const std::vector<size_t> sizes(keys.size(), size);
  print_batch(connector->submit_batch_get(keys, pointers, sizes, size), wait_ms, kept.back(), size);
}

static void set(std::istringstream& words) {
  int wait_ms;
  words >> wait_ms;
  static std::vector<std::vector<std::string>> kept;
  kept.emplace_back();
  std::vector<std::string> keys;
  for (std::string pair; words >> pair;) {
    keys.push_back(pair.substr(0, pair.find('=')));
    kept.back().push_back(value_of(pair.substr(pair.find('=') + 1)));
  }
  std::vector<void*> pointers;
  std::vector<size_t> sizes;
  for (std::string& value : kept.back()) {
    pointers.push_back(value.data());
    sizes.push_back(value.size());
  }
  print_batch(connector->submit_batch_set(keys, pointers, sizes, sizes.at(0)), wait_ms, {}, 0);
}

static void flags(std::istringstream& words, bool erase) {
  int wait_ms;
  words >> wait_ms;
  std::vector<std::string> keys;
  for (std::string key; words >> key;) keys.push_back(key);
  print_batch(erase ? connector->submit_batch_delete(keys) : connector->submit_batch_exists(keys),
              wait_ms, {}, 0);
}

static char value_byte(size_t key, size_t at) {
  return static_cast<char>((key * 31 + at * 7 + at / 251) % 255);
}

// Many threads share the connector. In "calm" every answer must be right, in
// "chaos" (somebody kills connections) none may be wrong: foreign bytes, a hang.
static std::string stress_thread(size_t thread, int wait_ms, size_t rounds, size_t num_keys,
                                 size_t size, bool calm) {
  std::vector<std::string> keys;
  std::vector<Buffer> values, buffers;
  std::vector<void*> from, into;
  for (size_t i = 0; i < num_keys; ++i) {
    keys.push_back("stress-" + std::to_string(thread) + "-" + std::to_string(i));
    values.push_back(poisoned(size));
    buffers.push_back(poisoned(size));
    from.push_back(values.back().get());
    into.push_back(buffers.back().get());
    for (size_t at = 0; at < size; ++at) values[i][at] = value_byte(thread * num_keys + i, at);
  }
  const std::vector<size_t> sizes(num_keys, size);
  Completion done;
  for (size_t round = 0; round < rounds; ++round) {
    // every third key is deleted first, so that batches have holes
    std::vector<std::string> holes;
    for (size_t i = round % 3; i < num_keys; i += 3) holes.push_back(keys[i]);
    if (!completions->wait(connector->submit_batch_set(keys, from, sizes, size), wait_ms, done)) {
      return "SET hangs";
    }
    if (done.result_bytes.size() != num_keys) return "SET without results";
    if (calm && !done.ok) return "SET failed: " + done.error;
    if (!completions->wait(connector->submit_batch_delete(holes), wait_ms, done)) {
      return "DEL hangs";
    }
    if (calm && !done.error.empty()) return "DEL failed: " + done.error;
    for (auto& buffer : buffers) std::fill_n(buffer.get(), size, kPoison);
    if (!completions->wait(connector->submit_batch_get(keys, into, sizes, size), wait_ms, done)) {
      return "GET hangs";
    }
    if (done.result_bytes.size() != num_keys) return "GET without results";
    for (size_t i = 0; i < num_keys; ++i) {
      const bool loaded = done.result_bytes[i] != 0;
      if (calm && loaded != (i % 3 != round % 3)) return "GET result wrong: " + done.error;
      if (loaded && std::memcmp(into[i], from[i], size) != 0) return "GET with foreign bytes";
    }
    if (!completions->wait(connector->submit_batch_exists(keys), wait_ms, done)) {
      return "lookup hangs";
    }
    for (size_t i = 0; calm && i < num_keys; ++i) {
      if ((done.result_bytes[i] != 0) != (i % 3 != round % 3)) return "lookup result wrong";
    }
  }
  return "";
}

static void stress(std::istringstream& words) {
  int wait_ms;
  size_t num_threads, rounds, num_keys, size;
  std::string mood;
  words >> wait_ms >> num_threads >> rounds >> num_keys >> size >> mood;
  std::vector<std::string> problems(num_threads);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < num_threads; ++i) {
    threads.emplace_back([&, i] {
      problems[i] = stress_thread(i, wait_ms, rounds, num_keys, size, mood == "calm");
    });
  }
  for (auto& thread : threads) thread.join();
  std::string all;
  for (auto& problem : problems) {
    if (!problem.empty()) all += problem + "; ";
  }
  std::cout << (all.empty() ? "fine" : all) << std::endl;
}

static void open(std::istringstream& words) {
  int port, workers, timeout_ms;
  std::string password, username;
  words >> port >> workers >> timeout_ms >> password >> username;
  completions.reset();
  connector = make_connector<RedisConnector>(port, workers, timeout_ms, password, username);
  completions = std::make_unique<Completions>(*connector);
  std::cout << "opened" << std::endl;
}

static void close() {
  const auto start = Clock::now();
  completions.reset();
  connector.reset();
  std::cout << "closed " << ms_since(start) << std::endl;
}

int main() {
  for (std::string text; std::getline(std::cin, text);) {
    std::istringstream words(text);
    std::string command;
    words >> command;
    if (command == "open") {
      open(words);
    } else if (command == "get") {
      get(words);
    } else if (command == "set") {
      set(words);
    } else if (command == "exists" || command == "del") {
      flags(words, command == "del");
    } else if (command == "stress") {
      stress(words);
    } else if (command == "close") {
      close();
    } else if (command == "descriptors") {
      size_t count = 0;
      for (auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        (void)entry;
        ++count;
      }
      std::cout << count << std::endl;
    } else if (command == "memory") {
      struct rusage usage = {};
      ::getrusage(RUSAGE_SELF, &usage);
      std::cout << usage.ru_maxrss << std::endl;
#ifdef COUNT_CALLS
    } else if (command == "calls") {
      std::cout << receives.exchange(0) << ' ' << polls.exchange(0) << ' ' << sends.exchange(0)
                << std::endl;
#endif
    } else {
      std::cout << "unknown command: " << command << std::endl;
    }
  }
  completions.reset();
  connector.reset();
  return 0;
}
