// What is told of a beam where utterances end: which prefixes are the best, and when their tokens were said.
#pragma once
#include "ctc_beam.hpp"

// See hf_ngpulm/search/ctc_beam/cpu.py.
struct NgpulmBeamModels {
  const int32_t* states;
  const float* weights;
  const uint8_t* present;
  int64_t num_automata, num_lms;
  uint8_t score_eos;
};

struct NgpulmRanked {
  int32_t *places, *sizes;
  double* scores;
  int64_t count;
};

struct NgpulmTraced {
  int32_t *tokens, *starts, *ends;
  int64_t width;
};

namespace ngpulm {

// What a prefix is worth if nothing follows, and the parts of that: the acoustic score, and the unweighted ones of the LMs (without
// </s>) and of the phrases.
struct PrefixScores {
  double total, acoustic, of_lms, of_phrases;
};

template <class Token>
PrefixScores scores_at_end(const Automaton<Token>& lm, const NgpulmBeamModels& models, int64_t row, const Prefixes& p, int64_t k) {
  const double acoustic = add_logs(p.blank_scores[k], p.token_scores[k]) + *p.offsets;
  PrefixScores found{acoustic + double(p.fused[k]), acoustic, 0.0, 0.0};
  for (int64_t m = 0; m < models.num_automata && found.total > NEG_INF_DOUBLE; ++m) {
    const int64_t of_row = row * models.num_automata + m, at = k * models.num_automata + m;
    if (!models.present[of_row]) continue;
    const bool is_lm = m < models.num_lms;
    const float final = models.score_eos || !is_lm ? lm.step(p.lm_states[at], lm.vocab_size, lm.vocab_size + 1).score : 0.f;
    found.total += double(models.weights[of_row]) * double(final);
    if (is_lm) found.of_lms += double(p.lm_scores[at]);
    else found.of_phrases += double(p.lm_scores[at]) + double(final);
  }
  return found;
}

// Find the best prefixes of a row, the best one first; after those that there are comes nothing.
template <class Token>
void rank(const Automaton<Token>& lm, const NgpulmBeamModels& models, int64_t row, const Prefixes& p, int64_t num_beams,
          const NgpulmRanked& ranked) {
  std::vector<PrefixScores> found;
  std::vector<int32_t> order;
  for (int32_t k = 0; k < num_beams; ++k) {
    found.push_back(scores_at_end(lm, models, row, p, k));
    if (found[k].total > NEG_INF_DOUBLE) order.push_back(k);
  }
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return found[a].total != found[b].total ? found[a].total > found[b].total : p.is_before(a, b);
  });
  order.resize(std::min<size_t>(order.size(), ranked.count));
  const int64_t at = row * ranked.count;
  std::fill_n(ranked.places + at, ranked.count, 0);
  std::fill_n(ranked.sizes + at, ranked.count, 0);
  std::fill_n(ranked.scores + 4 * at, 4 * ranked.count, NEG_INF_DOUBLE);
  for (size_t n = 0; n < order.size(); ++n) {
    const PrefixScores& s = found[order[n]];
    ranked.places[at + n] = order[n];
    ranked.sizes[at + n] = p.sizes[order[n]];
    const double parts[] = {s.total, s.acoustic, s.of_lms, s.of_phrases};
    std::copy_n(parts, 4, ranked.scores + 4 * (at + n));
  }
}

// Follow the ranked prefixes of a row from the last of some frames to the first; `links` and `labels` are [T, K].
inline void trace(const int32_t* links, const int32_t* labels, int64_t num_frames, int64_t num_beams, int64_t row,
                  const NgpulmRanked& ranked, const NgpulmTraced& traced) {
  for (int64_t at = row * ranked.count; at < (row + 1) * ranked.count; ++at) {
    int32_t *tokens = traced.tokens + at * traced.width, *starts = traced.starts + at * traced.width, *ends = traced.ends + at * traced.width;
    int32_t place = ranked.places[at], size = ranked.sizes[at], end = -1;
    for (auto frame = int32_t(num_frames - 1); frame >= 0 && size > 0; --frame) {
      const int32_t label = labels[frame * num_beams + place];
      if (label >= 0) {
        --size;
        tokens[size] = label;
        starts[size] = frame;
        ends[size] = end >= 0 ? end : frame + 1;
        end = -1;
      } else if (label == INSIDE && end < 0) {  // and so are the frames before it, down to the token's first
        end = frame + 1;
      }
      place = links[frame * num_beams + place];
    }
  }
}

}  // namespace ngpulm
