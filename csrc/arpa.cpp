// Read the n-grams of ARPA files. hf_ngpulm/formats/arpa.py finds the sections and explains faults.
//
// This file reads the usual numbers: decimal numbers of at most 19 digits that aren't huge and have a permitted value. It
// leaves all other text in place of a number (`-inf`, or text that isn't a number) to the caller.
#include "core.hpp"

// The n-grams of one order, as hf_ngpulm/formats/arpa.py declares them. At most `capacity` n-grams are written, as natural
// logarithms. `left` [room, 4] are the numbers left to the caller: the n-gram, 1 for a backoff, and the begin and end of the
// number's text. `progress` is read and written: the position in the text, the number of n-grams, the number of numbers left,
// and the begin and end of a fault.
struct NgpulmArpaSection {
  const uint8_t* text;
  int64_t end;
  int64_t order;
  int64_t capacity;
  float* log_probs;
  float* backoffs;
  int64_t* left;
  int64_t room;
  int64_t* progress;
};

// The words of the unigrams. Word i is the text from starts[i] to starts[i + 1] - 1, exclusive, and stands for ids[i]. The
// hash table `slots` (its size is a power of two) finds words: an entry is the upper half of the hash, then the word's number
// plus one; 0 is empty. `seed` is random, so that files can't be made to cause collisions.
struct NgpulmArpaWords {
  const uint8_t* text;
  const int64_t* starts;
  const int32_t* ids;
  int64_t num_words;
  int64_t* slots;
  int64_t num_slots;
  int64_t seed;
};

namespace ngpulm {
namespace {

constexpr int64_t COMPLETE = 0, MORE = 1, WRONG_WIDTH = 2, UNKNOWN_WORD = 3;
constexpr double LN10 = 2.302585092994045684, ROUNDING = 1e-4, LARGEST = 1e38;  // as arpa.py has them
constexpr int64_t MAX_ORDER = 64;

struct Field {
  const uint8_t *begin, *end;
};

enum Kind : uint8_t { INK, BLANK, NEWLINE };
struct Kinds {
  Kind of[256] = {};
  constexpr Kinds() {
    for (const char c : {' ', '\t', '\r', '\v', '\f'}) of[int(c)] = BLANK;
    of[int('\n')] = NEWLINE;
  }
};
constexpr Kinds KINDS;

Kind kind(uint8_t byte) { return KINDS.of[byte]; }
bool is_digit(uint8_t byte) { return byte >= '0' && byte <= '9'; }

// digits / 10 ** places, correctly rounded, for at most 27 places: 5 ** 27 fits into 63 bits.
double quotient(uint64_t digits, int64_t places) {
  unsigned __int128 divisor = 1;
  for (int64_t i = 0; i < places; ++i) divisor *= 5;
  const int shift = 64 + __builtin_clzll(digits);
  const unsigned __int128 dividend = (unsigned __int128)digits << shift, whole = dividend / divisor;
  // Return the upper 64 bits of the quotient, which has more than 64 bits. The lowest of them is set if any lower bit is set.
  const int beneath = 64 - __builtin_clzll(uint64_t(whole >> 64));
  const uint64_t upper = uint64_t(whole >> beneath);
  const bool is_exact = whole * divisor == dividend && ((unsigned __int128)upper << beneath) == whole;
  return std::ldexp(double(upper | !is_exact), int(beneath - shift - places));
}

// Read a decimal number as a double, correctly rounded; return false if the number isn't of the usual kind.
bool read_number(Field field, double& value) {
  static constexpr double POWERS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                      1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  const uint8_t *at = field.begin, *const end = field.end;
  const bool is_negative = at < end && *at == '-';
  if (at < end && (*at == '-' || *at == '+')) ++at;
  uint64_t digits = 0;
  const uint8_t* const first = at;
  for (; at < end && is_digit(*at); ++at) digits = digits * 10 + (*at - '0');
  int64_t count = at - first, exponent = 0;
  if (at < end && *at == '.') {
    const uint8_t* const point = ++at;
    for (; at < end && is_digit(*at); ++at) digits = digits * 10 + (*at - '0');
    exponent = point - at;
    count -= exponent;
  }
  if (count == 0) return false;
  for (const uint8_t* zero = first; count > 19 && (*zero == '0' || *zero == '.'); ++zero) count -= *zero == '0';
  if (count > 19) return false;  // (19 digits fit into 64 bits)
  if (at < end && (*at == 'e' || *at == 'E')) {
    const bool is_below = ++at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) ++at;
    if (end - at < 1 || end - at > 4) return false;
    int64_t given = 0;
    for (; at < end && is_digit(*at); ++at) given = given * 10 + (*at - '0');
    exponent += is_below ? -given : given;
  }
  if (at < end) return false;
  if (digits <= uint64_t(1) << 53 && exponent >= -22 && exponent <= 22)  // both factors are exact (Clinger 1990)
    value = exponent < 0 ? double(digits) / POWERS[-exponent] : double(digits) * POWERS[exponent];
  else if (digits != 0 && exponent >= -27 && exponent <= 0)
    value = quotient(digits, -exponent);
  else
    return false;
  if (is_negative) value = -value;
  return true;
}

bool read_log_prob(Field field, float& out) {
  double value;
  if (!read_number(field, value) || value <= -LARGEST || value > ROUNDING) return false;
  out = float((value > 0 ? 0.0 : value) * LN10);
  return true;
}

bool read_backoff(Field field, float& out) {
  double value;
  if (!read_number(field, value) || std::abs(value) >= LARGEST) return false;
  out = float(value * LN10);
  return true;
}

// Splits a text into lines of fields.
class Lines {
 public:
  Lines(const uint8_t* at, const uint8_t* end, int64_t most) : at(at), end(end), most(most) {}

  // Read the next line; return false at the end. All fields are counted, but only the first ones are stored.
  bool next() {
    if (at == end) return false;
    begin = at;
    width = 0;
    while (at < end && kind(*at) != NEWLINE) {
      if (kind(*at) == BLANK) {
        ++at;
        continue;
      }
      const uint8_t* const ink = at;
      while (at < end && kind(*at) == INK) ++at;
      if (width < most) fields[width] = {ink, at};
      ++width;
    }
    if (at < end) ++at;
    return true;
  }

  const uint8_t *at, *end, *begin = nullptr;
  int64_t most, width = 0;
  Field fields[MAX_ORDER + 2];
};

// Reads the lines of a section. `take(row, word, field)` returns whether it accepts a word.
template <class Take>
int64_t read_section(const NgpulmArpaSection& section, Take&& take) {
  const int64_t order = section.order;
  if (order < 1 || order > MAX_ORDER) return FAILED_INTERNALLY;
  int64_t &place = section.progress[0], &row = section.progress[1], &num_left = section.progress[2];
  Lines lines(section.text + place, section.text + section.end, order + 2);
  const auto fault = [&](int64_t which, const uint8_t* begin, const uint8_t* end) {
    section.progress[3] = begin - section.text;
    section.progress[4] = end - section.text;
    return which;
  };
  const auto leave = [&](Field field, int64_t is_backoff) {
    const int64_t values[] = {row, is_backoff, field.begin - section.text, field.end - section.text};
    std::copy_n(values, 4, section.left + 4 * num_left++);
  };
  for (num_left = 0; num_left + 2 <= section.room && lines.next(); place = lines.at - section.text) {
    if (lines.width == 0) continue;
    const bool has_backoff = lines.width == order + 2;
    if (lines.width != order + 1 && !has_backoff) return fault(WRONG_WIDTH, lines.begin, lines.at);
    float log_prob = 0, backoff = 0;
    if (!read_log_prob(lines.fields[0], log_prob)) leave(lines.fields[0], 0);
    if (has_backoff && !read_backoff(lines.fields[order + 1], backoff)) leave(lines.fields[order + 1], 1);
    for (int64_t k = 0; k < order; ++k)
      if (!take(row, k, lines.fields[k + 1])) return fault(UNKNOWN_WORD, lines.fields[k + 1].begin, lines.fields[k + 1].end);
    if (row < section.capacity) {
      section.log_probs[row] = log_prob;
      section.backoffs[row] = backoff;
    }
    ++row;
  }
  return place < section.end ? MORE : COMPLETE;
}

uint64_t mixed(uint64_t a, uint64_t b) {
  const unsigned __int128 product = (unsigned __int128)a * b;
  return uint64_t(product) ^ uint64_t(product >> 64);
}

// Return at most eight bytes as a number. Together with their count the number identifies the bytes.
uint64_t load(const uint8_t* bytes, int64_t size) {
  if (size >= 4) {
    uint32_t low, high;
    std::memcpy(&low, bytes, 4);
    std::memcpy(&high, bytes + size - 4, 4);
    return low | uint64_t(high) << 32;
  }
  return size == 0 ? 0 : bytes[0] | uint64_t(bytes[size / 2]) << 8 | uint64_t(bytes[size - 1]) << 16;
}

uint64_t hash_of(Field word, int64_t seed) {
  constexpr uint64_t ONE = 0xa0761d6478bd642fu, OTHER = 0xe7037ed1a0b428dbu;
  const uint8_t* at = word.begin;
  uint64_t hash = mixed(uint64_t(seed) ^ uint64_t(word.end - at), ONE);
  for (; word.end - at > 8; at += 8) hash = mixed(hash ^ load(at, 8), ONE);
  return mixed(hash ^ load(at, word.end - at), OTHER);
}

struct Words : NgpulmArpaWords {
  Field word(int64_t i) const { return {text + starts[i], text + starts[i + 1] - 1}; }

  // Return the slot of a word, or the empty slot into which the word would go.
  int64_t* slot_of(Field wanted, uint64_t hash) const {
    for (int64_t at = int64_t(hash) & (num_slots - 1);; at = (at + 1) & (num_slots - 1)) {
      const uint64_t slot = uint64_t(slots[at]);
      if (slot == 0) return slots + at;
      if (slot >> 32 != hash >> 32) continue;
      const Field found = word(number_in(slot));
      if (found.end - found.begin == wanted.end - wanted.begin && std::equal(found.begin, found.end, wanted.begin))
        return slots + at;
    }
  }
  static int64_t number_in(uint64_t slot) { return int64_t(slot & 0xffffffffu) - 1; }

  // Return the number of a word, or -1 if there is no such word.
  int64_t find(Field wanted) const { return number_in(uint64_t(*slot_of(wanted, hash_of(wanted, seed)))); }
};

}  // namespace
}  // namespace ngpulm

using namespace ngpulm;

// Read the unigrams of a section. Their words are written to `words`, each followed by a newline; `words` has room for as
// many bytes as the section. `starts` [capacity + 1] gets the start of each word. Returns COMPLETE, MORE, or the kind of
// fault in a line.
NGPULM_EXPORT int64_t ngpulm_arpa_unigrams(const NgpulmArpaSection* section, uint8_t* words, int64_t* starts) {
  if (section->progress[1] == 0) starts[0] = 0;
  return read_section(*section, [&](int64_t row, int64_t, Field word) {
    if (row >= section->capacity) return true;
    uint8_t* const end = std::copy(word.begin, word.end, words + starts[row]);
    *end = '\n';
    starts[row + 1] = end + 1 - words;
    return true;
  });
}

// Enter all words into the empty table. Of equal words, only the first is entered.
NGPULM_EXPORT int64_t ngpulm_arpa_index(const NgpulmArpaWords* given) {
  const Words words{*given};
  for (int64_t i = 0; i < words.num_words; ++i) {
    const uint64_t hash = hash_of(words.word(i), words.seed);
    int64_t* const slot = words.slot_of(words.word(i), hash);
    if (*slot == 0) *slot = int64_t((hash >> 32 << 32) | uint64_t(i + 1));
  }
  return 0;
}

// Read the n-grams of a section: tokens [capacity, order]. Returns the same values as `ngpulm_arpa_unigrams`.
NGPULM_EXPORT int64_t ngpulm_arpa_ngrams(const NgpulmArpaSection* section, const NgpulmArpaWords* given, int32_t* tokens) {
  const Words words{*given};
  return read_section(*section, [&](int64_t row, int64_t k, Field word) {
    const int64_t found = words.find(word);
    if (found >= 0 && row < section->capacity) tokens[row * section->order + k] = words.ids[found];
    return found >= 0;
  });
}
