// The arithmetic of composing a language model over words with its lexicon, see hf_ngpulm/lexicon/composition.py: what is
// composed as a whole and what is composed bit by bit weigh the same to the bit.
#pragma once
#include "lexicon.hpp"

namespace ngpulm {

// Parts of a mass that are smaller than this are what rounding leaves of nothing.
constexpr double NOTHING = 1e-12;
constexpr double SMALLEST = 1e-300, LARGEST = 1e300, LARGEST_LOG = 690.0;

inline double bounded_exp(double log) { return std::exp(std::min(log, LARGEST_LOG)); }
inline double bounded_log(double mass) { return std::log(std::min(std::max(mass, SMALLEST), LARGEST)); }

// The log of the probability of all words that begin with a prefix: of the state's `own`, which score `below` in the state that
// it backs off to, and of the others there, all of which together have `log_all_below`. `backoff` is the bounded_exp of its
// backoff weight.
inline double log_mass(double own, double below, double log_all_below, double backoff) {
  const double all_below = bounded_exp(log_all_below);
  double rest = all_below - below;
  if (rest < NOTHING * all_below) rest = 0;
  return bounded_log(own + backoff * rest);
}

}  // namespace ngpulm
