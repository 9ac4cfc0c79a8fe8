// CTC prefix beam search of rows of a batch. The search functions return -1, or the first row whose prefixes have a state or
// a token that doesn't exist.
#include <numeric>

#include "ctc_beam_search.hpp"

using namespace ngpulm;

namespace {

// Rank the prefixes of a row, the best one first. Missing prefixes come last and have the score -inf.
template <class Token>
void rank(const Automaton<Token>& lm, const NgpulmCtcModels& models, int64_t row, const Prefixes& p, int64_t num_beams,
          const NgpulmRanked& ranked, int64_t at) {
  std::vector<HypothesisScores> scores;
  std::vector<int32_t> order;
  for (int32_t k = 0; k < num_beams; ++k) {
    const double acoustic = add_logs(p.blank_scores[k], p.token_scores[k]) + *p.offsets;
    const int64_t of_place = k * models.num_automata;
    scores.push_back(scores_at_end(lm, models, row, acoustic, acoustic + double(p.fused[k]), p.lm_scores + of_place,
                                   p.lm_states + of_place));
    if (scores[k].total > NEG_INF_DOUBLE) order.push_back(k);
  }
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[a].total != scores[b].total ? scores[a].total > scores[b].total : p.is_before(a, b);
  });
  order.resize(std::min<size_t>(order.size(), ranked.count));
  std::fill_n(ranked.places + at, ranked.count, 0);
  std::fill_n(ranked.sizes + at, ranked.count, 0);
  std::fill_n(ranked.scores + 4 * at, 4 * ranked.count, NEG_INF_DOUBLE);
  for (size_t n = 0; n < order.size(); ++n) {
    const HypothesisScores& s = scores[order[n]];
    ranked.places[at + n] = order[n];
    ranked.sizes[at + n] = p.sizes[order[n]];
    const double parts[] = {s.total, s.acoustic, s.of_lms, s.of_phrases};
    std::copy_n(parts, 4, ranked.scores + 4 * (at + n));
  }
}

}  // namespace

// Search the frames of a batch; a row has `width` frames with padding. The trace goes to `tails`, or to `links` and `labels`
// [N, width, K], which come in as those of frames that change nothing. `confidences`
// [N, width] may be null; they are computed here if they are the highest probabilities, `are_max_probs`.
NGPULM_EXPORT int64_t ngpulm_ctc_beam(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmFrames* frames,
                                      const NgpulmBeamRules* rules, const NgpulmCtcRows* batch, int64_t width,
                                      float* confidences, int64_t are_max_probs, const NgpulmTails* tails, int32_t* links,
                                      int32_t* labels, int32_t* bad_frames) {
  return with_automaton(*automaton, [&](auto& lm) -> int64_t {
    const int64_t num_beams = rules->num_beams;
    PrefixSearch search(lm, *frames, *rules);
    std::vector<int32_t> own_links, own_labels;
    for (int64_t i = first; i < last; ++i) {
      const int64_t length = frames->lengths[i], row = row_of(*batch, i);
      const Prefixes prefixes(batch->states, row, num_beams, rules->num_automata);
      if (!search.is_sound(prefixes)) return row;
      int32_t *row_links, *row_labels;
      if (!tails) {
        row_links = links + i * width * num_beams, row_labels = labels + i * width * num_beams;
      } else {
        own_links.resize(length * num_beams);
        for (int64_t at = 0; at < length * num_beams; at += num_beams) std::iota(&own_links[at], &own_links[at] + num_beams, 0);
        own_labels.assign(length * num_beams, BLANK);
        row_links = own_links.data(), row_labels = own_labels.data();
      }
      float* row_confidences = confidences ? confidences + i * width : nullptr;
      bad_frames[i] = search.run(i, row, prefixes, row_links, row_labels, are_max_probs ? row_confidences : nullptr);
      if (!tails || bad_frames[i] >= 0) continue;
      Following following(*tails);
      follow_frames(following, *tails, row, row_links, row_labels, length, batch->firsts[row], batch->sums[row],
                    row_confidences, [&](int64_t k) { return prefixes.has(k); });
    }
    return -1;
  });
}

// Rank the prefixes of some rows by their scores, including the score of the end.
NGPULM_EXPORT int64_t ngpulm_ctc_beam_rank(int64_t first, int64_t last, const NgpulmAutomaton* automaton,
                                           const NgpulmCtcModels* models, const NgpulmCtcRows* batch, int64_t num_beams,
                                           int64_t joins_texts, const NgpulmRanked* ranked) {
  return with_automaton(*automaton, [&](auto& lm) -> int64_t {
    const int64_t num_automata = models->num_automata, bytes = Prefixes::bytes(num_beams, num_automata);
    TextMerger merger(joins_texts ? num_beams : 0);
    std::vector<int64_t> copy(joins_texts ? bytes / 8 : 0);
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = row_of(*batch, i);
      Prefixes prefixes(batch->states, row, num_beams, num_automata);
      if (!are_states_sound(lm, prefixes, num_beams, num_automata)) return row;
      if (joins_texts) {  // on a copy, because a stream may continue with its own prefixes
        std::memcpy(copy.data(), prefixes.offsets, bytes);
        prefixes = Prefixes(copy.data(), 0, num_beams, num_automata);
        merger.merge_at_end(prefixes);
      }
      rank(lm, *models, row, prefixes, num_beams, *ranked, i * ranked->count);
    }
    return -1;
  });
}
