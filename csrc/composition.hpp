// The arithmetic for composing a language model over words with its lexicon; see hf_ngpulm/lexicon/composition.py. Static and
// lazy composition both use it, so their weights are equal bit for bit.
#pragma once
#include "lexicon.hpp"

namespace ngpulm {

// Parts of a mass below this limit are rounding errors of zero.
constexpr double NOTHING = 1e-12;
constexpr double SMALLEST = 1e-300, LARGEST = 1e300, LARGEST_LOG = 690.0;

inline double bounded_exp(double log) { return std::exp(std::min(log, LARGEST_LOG)); }
inline double bounded_log(double mass) { return std::log(std::min(std::max(mass, SMALLEST), LARGEST)); }

// The log of the probability of all words that begin with a prefix. `own` is the probability of the state's own words, which
// have `below` in the backoff state. All words with the prefix have `log_all_below` in the backoff state. `backoff` is the
// bounded_exp of the backoff weight.
inline double log_mass(double own, double below, double log_all_below, double backoff) {
  const double all_below = bounded_exp(log_all_below);
  double rest = all_below - below;
  if (rest < NOTHING * all_below) rest = 0;
  return bounded_log(own + backoff * rest);
}

}  // namespace ngpulm
