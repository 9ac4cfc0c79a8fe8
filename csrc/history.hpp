// Tokens of the hypotheses of streams; see hf_ngpulm/search/history.py.
#pragma once
#include "frames.hpp"

// Tails [S, K] of up to `room` tokens each: their sizes, and their tokens (`ngpulm::Token`).
struct NgpulmTails {
  int64_t* sizes;
  void* tokens;
  int64_t num_beams, room;
};

namespace ngpulm {

// A token, laid out as `TOKEN` in hf_ngpulm/search/history.py.
struct Token {
  int64_t id, start, end;
  double before, after;
};

class Tail {
 public:
  Tail(const NgpulmTails& tails, int64_t row, int64_t k)
      : size_(tails.sizes + row * tails.num_beams + k),
        tokens_(static_cast<Token*>(tails.tokens) + (row * tails.num_beams + k) * tails.room) {}

  int64_t& size() { return *size_; }
  Token* begin() { return tokens_; }
  Token* end() { return tokens_ + *size_; }
  Token& operator[](int64_t i) { return tokens_[i]; }
  void append(const Token& token) { tokens_[(*size_)++] = token; }
  void extend_last(int64_t end, double after) {
    if (*size_ == 0) return;
    tokens_[*size_ - 1].end = end, tokens_[*size_ - 1].after = after;
  }

 private:
  int64_t* size_;
  Token* tokens_;
};

// Traces the hypotheses of a row back through the steps of a search, and extends their tails.
class Following {
 public:
  explicit Following(const NgpulmTails& tails) : tails_(tails), origins_(tails.num_beams), is_live_(tails.num_beams) {}

  // Give each hypothesis of a row a copy of the tail of its parent; places without a hypothesis get empty tails.
  //
  // Args: links: K links of each step from the row's first step on, `stride` numbers apart; is_live: function that returns
  // whether place k contains a hypothesis.
  template <class IsLive>
  void begin(int64_t row, const int32_t* links, int64_t stride, int64_t length, IsLive&& is_live) {
    const int64_t num_beams = tails_.num_beams;
    places_.resize(num_beams * length);
    for (int64_t k = 0; k < num_beams; ++k) {
      int64_t place = k;
      is_live_[k] = is_live(k);
      for (int64_t step = is_live_[k] ? length - 1 : -1; step >= 0; --step) {
        places_[k * length + step] = int32_t(place);
        place = links[step * stride + place];
      }
      origins_[k] = place;
    }
    length_ = length;
    copy_tails(row);
  }

  bool is_live(int64_t k) const { return is_live_[k]; }
  // Return a hypothesis's place before the first step, and its place after a step.
  int64_t origin(int64_t k) const { return origins_[k]; }
  int64_t place(int64_t k, int64_t step) const { return places_[k * length_ + step]; }

 private:
  // Tails can be long while an early token is undecided, so they are saved only if they would be overwritten.
  void copy_tails(int64_t row) {
    aside_.clear();
    for (int64_t k = 0; k < tails_.num_beams; ++k)
      if (moves(k) && moves(origins_[k])) {
        Tail from(tails_, row, origins_[k]);
        aside_.insert(aside_.end(), from.begin(), from.end());
      }
    old_sizes_.assign(tails_.sizes + row * tails_.num_beams, tails_.sizes + (row + 1) * tails_.num_beams);
    const Token* next = aside_.data();
    for (int64_t k = 0; k < tails_.num_beams; ++k) {
      Tail tail(tails_, row, k);
      if (!is_live_[k]) tail.size() = 0;
      if (!moves(k)) continue;
      const int64_t size = tail.size() = old_sizes_[origins_[k]];
      const bool is_aside = moves(origins_[k]);
      std::copy_n(is_aside ? next : Tail(tails_, row, origins_[k]).begin(), size, tail.begin());
      if (is_aside) next += size;
    }
  }

  bool moves(int64_t k) const { return is_live_[k] && origins_[k] != k; }

  const NgpulmTails& tails_;
  int64_t length_ = 0;
  std::vector<int64_t> origins_, old_sizes_;
  std::vector<uint8_t> is_live_;
  std::vector<int32_t> places_;
  std::vector<Token> aside_;
};

// Append the tokens of CTC frames to the tails of one row.
//
// Args: links, labels: [length, K] (if links is null, there is one hypothesis); first: number of frames before; sum: the
// confidences of these frames, updated; confidences: [length], or null.
template <class IsLive>
void follow_frames(Following& following, const NgpulmTails& tails, int64_t row, const int32_t* links, const int32_t* labels,
                   int64_t length, int64_t first, double& sum, const float* confidences, IsLive&& is_live) {
  const int64_t num_beams = tails.num_beams;
  following.begin(row, links, num_beams, length, is_live);
  double after = sum;
  for (int64_t k = 0; k < num_beams; ++k) {
    if (!following.is_live(k)) continue;
    Tail tail(tails, row, k);
    after = sum;
    for (int64_t t = 0; t < length; ++t) {
      const int32_t label = labels[t * num_beams + following.place(k, t)];
      const double before = after;
      if (confidences) after += confidences[t];
      if (label >= 0)
        tail.append({label, first + t, first + t + 1, before, after});
      else if (label == INSIDE)
        tail.extend_last(first + t + 1, after);
    }
  }
  for (int64_t t = 0; confidences && t < length; ++t) sum += confidences[t];
}

// Append the tokens of greedy CTC frames to the tail of one row. `labels` is [length]; `last` is the previous label and is
// updated.
inline void follow_labels(const NgpulmTails& tails, int64_t row, const int32_t* labels, int64_t length, int64_t first,
                          int32_t blank, int32_t& last, double& sum, const float* confidences) {
  Tail tail(tails, row, 0);
  for (int64_t t = 0; t < length; ++t) {
    const double before = sum;
    if (confidences) sum += confidences[t];
    if (labels[t] != blank && labels[t] == last)
      tail.extend_last(first + t + 1, sum);
    else if (labels[t] != blank)
      tail.append({labels[t], first + t, first + t + 1, before, sum});
    last = labels[t];
  }
}

}  // namespace ngpulm
