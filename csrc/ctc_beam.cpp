// CTC prefix beam search: in blocks of frames, or whole utterances in one call, with ranking and tracing back. The functions that
// search return -1, or the first row whose prefixes name a state or a token that doesn't exist.
#include <numeric>

#include "ctc_beam_ends.hpp"
#include "ctc_beam_search.hpp"

using namespace ngpulm;

// Go on with some rows. `links` and `labels` are [B, width, K]; where `stops` tell of unfinished states, rows stop at them.
NGPULM_EXPORT int64_t ngpulm_ctc_beam(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmFrames* frames,
                                      const NgpulmBeamRules* rules, const NgpulmBeams* beams, int32_t* links, int32_t* labels,
                                      int32_t* bad_frames, int64_t width, const NgpulmBeamStops* stops) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    PrefixSearch search(lm, *frames, *rules);
    for (int64_t row = first; row < last; ++row) {
      if (stops) stops->counts[row] = 0;
      if (stops && stops->frames[row] >= frames->lengths[row]) continue;
      const Prefixes prefixes(*beams, row, rules->num_beams, rules->num_automata);
      if (!search.is_sound(prefixes)) return row;
      const int64_t at = row * width * rules->num_beams;
      bad_frames[row] = search.run(row, prefixes, links + at, labels + at, stops);
    }
    return -1;
  });
}

// Search whole utterances, from the states of their `models`.
NGPULM_EXPORT int64_t ngpulm_ctc_beam_whole(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmFrames* frames,
                                            const NgpulmBeamRules* rules, const NgpulmBeamModels* models, const NgpulmRanked* ranked,
                                            const NgpulmTraced* traced, int32_t* bad_frames) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    const int64_t num_beams = rules->num_beams;
    PrefixSearch search(lm, *frames, *rules);
    Beam beam(num_beams, rules->num_automata);
    TextMerger merger(num_beams);
    std::vector<int32_t> links, labels;
    for (int64_t row = first; row < last; ++row) {
      const int64_t length = frames->lengths[row];
      links.resize(length * num_beams);
      for (int64_t at = 0; at < length * num_beams; at += num_beams) std::iota(&links[at], &links[at] + num_beams, 0);
      labels.assign(length * num_beams, BLANK);
      const Prefixes& prefixes = beam.begin(models->states + row * rules->num_automata);
      if (!search.is_sound(prefixes)) return row;
      bad_frames[row] = search.run(row, prefixes, links.data(), labels.data(), nullptr);
      if (rules->text_hashes) merger.merge_at_end(prefixes);
      rank(lm, *models, row, prefixes, num_beams, *ranked);
      trace(links.data(), labels.data(), length, num_beams, row, *ranked, *traced);
    }
    return -1;
  });
}

// Rank the prefixes of rows whose utterances end.
NGPULM_EXPORT int64_t ngpulm_ctc_beam_rank(int64_t first, int64_t last, const NgpulmAutomaton* automaton, const NgpulmBeamModels* models,
                                           const NgpulmBeams* beams, int64_t num_beams, const NgpulmRanked* ranked) {
  return with_automaton(*automaton, [&](auto lm) -> int64_t {
    for (int64_t row = first; row < last; ++row) {
      const Prefixes prefixes(*beams, row, num_beams, models->num_automata);
      if (!are_states_sound(lm, prefixes, num_beams, models->num_automata)) return row;
      rank(lm, *models, row, prefixes, num_beams, *ranked);
    }
    return -1;
  });
}
