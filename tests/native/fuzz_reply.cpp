// libFuzzer target over the bytes of one reply.
//
// Input: which command read it, how long the wanted value is, how the bytes
// arrive in pieces and how the stream ends, then the bytes themselves. What the
// reader says is compared with a second, plain parser that sees all bytes at
// once; the buffer's surroundings must stay as they were.
#include "resp_reply.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

using lmcache::connector::Answer;
using lmcache::connector::ByteSource;
using lmcache::connector::ReadResult;
using lmcache::connector::ReadStatus;
using lmcache::connector::Reply;
using lmcache::connector::ReplyReader;

#define REQUIRE(condition)                                                   \
  do {                                                                       \
    if (!(condition)) {                                                      \
      std::fprintf(stderr, "fuzz_reply.cpp:%d: %s\n", __LINE__, #condition); \
      std::abort();                                                          \
    }                                                                        \
  } while (false)

namespace {

class Pieces : public ByteSource {
 public:
  Pieces(std::string_view bytes, uint8_t pattern, ReadStatus end)
      : bytes_(bytes), pattern_(pattern), end_(end) {}

  ReadResult read(const struct iovec* parts, int num_parts) override {
    REQUIRE(!ended_);  // nobody asks on after the end
    size_t room = 0;
    for (int i = 0; i < num_parts; ++i) room += parts[i].iov_len;
    REQUIRE(room > 0);
    if (taken == bytes_.size()) {
      ended_ = true;
      return {end_, 0, end_ == ReadStatus::kFailed ? "recv failed: broken" : ""};
    }
    // 0 gives all there is; otherwise pieces of one to eight bytes
    const size_t piece = pattern_ == 0 ? room : 1 + ((pattern_ >> (turn_++ % 6)) & 7);
    size_t left = std::min({room, piece, bytes_.size() - taken});
    const size_t given = left;
    for (int i = 0; i < num_parts && left > 0; ++i) {
      const size_t n = std::min(left, parts[i].iov_len);
      std::memcpy(parts[i].iov_base, bytes_.data() + taken, n);
      taken += n;
      left -= n;
    }
    return {ReadStatus::kBytes, given, ""};
  }

  size_t taken = 0;

 private:
  std::string_view bytes_;
  uint8_t pattern_;
  ReadStatus end_;
  unsigned turn_ = 0;
  bool ended_ = false;
};

// What the bytes mean, from all of them: the length of the first reply in a
// form that may be consumed (0: none), and the answer.
struct Meaning {
  size_t length = 0;
  Answer answer = Answer::kFailed;
};

enum class Kind { kValue, kStored, kFlag };

Meaning plain_parse(Kind kind, const std::string& bytes, size_t wanted) {
  const size_t end = bytes.find_first_of("\r\n");
  if (end == std::string::npos || end == 0 || bytes.compare(end, 2, "\r\n") != 0) return {};
  if (end + 2 > ReplyReader::kMaxLine) return {};
  const std::string line = bytes.substr(0, end);
  if (line[0] == '-') return {end + 2, Answer::kFailed};
  if (kind == Kind::kStored) {
    return line == "+OK" ? Meaning{end + 2, Answer::kYes} : Meaning{};
  }
  if (kind == Kind::kFlag) {
    if (line == ":1") return {end + 2, Answer::kYes};
    if (line == ":0") return {end + 2, Answer::kNo};
    return {};
  }
  if (line == "$-1" || line == "*-1" || line == "_") return {end + 2, Answer::kNo};
  if (line[0] != '$') return {};
  char* stop = nullptr;
  const unsigned long size = std::strtoul(line.c_str() + 1, &stop, 10);
  if (*stop != '\0' || line.substr(1) != std::to_string(size)) return {};
  if (size != wanted && size > ReplyReader::kMaxDrain) return {};
  if (bytes.size() < end + 2 + size + 2) return {};
  if (bytes.compare(end + 2 + size, 2, "\r\n") != 0) return {};
  return {end + 2 + size + 2, size == wanted ? Answer::kYes : Answer::kFailed};
}

constexpr size_t kGuard = 64;
constexpr unsigned char kPoison = 0xA5;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const Kind kind = static_cast<Kind>(data[0] % 3);
  const size_t wanted = data[1] < 128 ? data[1] : (size_t{data[1]} - 127) * 100;
  const auto end = static_cast<ReadStatus>(1 + data[3] % 3);
  const std::string bytes(reinterpret_cast<const char*>(data) + 4, size - 4);

  Pieces source(bytes, data[2], end);
  ReplyReader reader(source);
  std::vector<unsigned char> memory(kGuard + wanted + kGuard, kPoison);
  unsigned char* buffer = memory.data() + kGuard;
  const std::string header = "$" + std::to_string(wanted) + "\r\n";
  const Reply reply = kind == Kind::kValue    ? reader.value(header, buffer, wanted)
                      : kind == Kind::kStored ? reader.stored()
                                              : reader.flag();

  const Meaning meaning = plain_parse(kind, bytes, wanted);
  // In step means: exactly this reply was consumed.
  if (reply.in_step) REQUIRE(meaning.length > 0 && source.taken == meaning.length);
  // A reply that is whole and alone never costs the connection.
  if (meaning.length > 0 && meaning.length == bytes.size()) REQUIRE(reply.in_step);
  // Yes and no are said of such replies alone; and of all of them.
  if (reply.answer != Answer::kFailed) REQUIRE(reply.answer == meaning.answer);
  if (meaning.length > 0) REQUIRE(reply.answer == meaning.answer);
  // A key that failed has a text, of printable ASCII and bounded.
  if (reply.answer == Answer::kFailed) REQUIRE(!reply.text.empty());
  REQUIRE(reply.text.size() < 256);
  for (char c : reply.text) REQUIRE(c >= 0x20 && c < 0x7f);
  REQUIRE(reply.started == (source.taken > 0));
  if (reply.stop != ReadStatus::kBytes) REQUIRE(reply.stop == end && !reply.in_step);

  // The buffer: nothing outside, nothing before the header has said the size,
  // and nothing but the value's own bytes in their places.
  for (size_t i = 0; i < kGuard; ++i) {
    REQUIRE(memory[i] == kPoison && buffer[wanted + i] == kPoison);
  }
  const bool announced = kind == Kind::kValue && bytes.compare(0, header.size(), header) == 0;
  const size_t received = announced ? std::min(wanted, bytes.size() - header.size()) : 0;
  REQUIRE(std::memcmp(buffer, bytes.data() + (announced ? header.size() : 0), received) == 0);
  for (size_t i = received; i < wanted; ++i) REQUIRE(buffer[i] == kPoison);
  if (reply.answer == Answer::kYes && kind == Kind::kValue) REQUIRE(received == wanted);
  return 0;
}
