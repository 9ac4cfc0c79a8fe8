// Frames of logits.
#pragma once
#include "vectors.hpp"

// See `Frames` in hf_ngpulm/search/ctc_rows.py.
struct NgpulmFrames {
  const int64_t* starts;
  const int32_t* lengths;
  const float* logits;
  int64_t classes;
  int32_t blank;
};

namespace ngpulm {

// Labels of frames at which a hypothesis gets no new token: the last token continues, or the frame is blank.
constexpr int32_t INSIDE = -1, BLANK = -2;

struct Frame {
  const float* logits;  // [C]
  double normaliser;    // log of the sum of the logits' exponentials
  float highest;        // highest logit except the blank's

  // Whether the frame has NaN or infinity, or no possible class.
  bool is_broken() const { return !std::isfinite(normaliser); }
  double log_prob(int32_t label) const { return logits[label] - normaliser; }
  // The probability of the likeliest class.
  float max_prob(int32_t blank) const { return float(std::exp(std::max(highest, logits[blank]) - normaliser)); }
};

inline Frame frame_of(const NgpulmFrames& frames, int64_t row, int64_t number) {
  const float* x = frames.logits + (frames.starts[row] + number) * frames.classes;
  const int64_t after_blank = frames.blank + 1;
  const float highest = std::max(highest_of(x, frames.blank), highest_of(x + after_blank, frames.classes - after_blank));
  const float top = std::max(highest, x[frames.blank]);
  if (!std::isfinite(top)) return {x, top, highest};
  return {x, log_sum_of_exp(sum_of_exp(x, frames.classes, top), top), highest};
}

}  // namespace ngpulm
