// What CTC prefix beam search keeps (hf_ngpulm/search/ctc_beam tells what it does).
#pragma once
#include "automaton.hpp"
#include "frames.hpp"

// See hf_ngpulm/search/ctc_beam/cpu.py.
struct NgpulmBeams {
  double* offsets;
  float *blank_scores, *token_scores;
  int32_t* last_tokens;
  int64_t *hashes, *parent_hashes;
  int32_t* sizes;
  float *fused, *lm_scores;
  int32_t* lm_states;
  int64_t* texts;
};

struct NgpulmBeamRules {
  const float *weights, *bonuses, *unscored;
  const int64_t* text_hashes;
  int64_t num_automata, num_beams;
  double threshold, skip;
};

struct NgpulmBeamStops {
  const uint8_t* unfinished;
  int64_t* frames;
  double* totals;
  int32_t* states;
  int64_t* counts;
};

namespace ngpulm {

inline int64_t slots_for(int64_t count) {
  int64_t slots = 4;
  while (slots < 2 * count) slots *= 2;
  return slots;
}

// The prefixes of one row: views of K numbers, or K for each automaton.
struct Prefixes : NgpulmBeams {
  Prefixes() = default;
  Prefixes(const NgpulmBeams& all, int64_t row, int64_t num_beams, int64_t num_automata) : NgpulmBeams(all) {
    const int64_t at = row * num_beams;
    offsets += row, blank_scores += at, token_scores += at, last_tokens += at, hashes += at, parent_hashes += at, sizes += at;
    fused += at, lm_scores += at * num_automata, lm_states += at * num_automata, texts += at;
  }

  // Whether of two prefixes that score the same the first comes first.
  bool is_before(int64_t a, int64_t b) const {
    return last_tokens[a] != last_tokens[b] ? last_tokens[a] < last_tokens[b] : parent_hashes[a] < parent_hashes[b];
  }
  bool has(int64_t place) const { return std::max(blank_scores[place], token_scores[place]) > NEG_INF; }
};

// Whether there are the states that the prefixes of a row are in.
template <class Token>
bool are_states_sound(const Automaton<Token>& lm, const Prefixes& prefixes, int64_t num_beams, int64_t num_automata) {
  for (int64_t k = 0; k < num_beams; ++k)
    if (prefixes.has(k) && !lm.has_all(prefixes.lm_states + k * num_automata, num_automata)) return false;
  return true;
}

// Room for the prefixes of one row.
class Beam {
 public:
  Beam(int64_t num_beams, int64_t num_automata)
      : num_beams(num_beams), num_automata(num_automata), of_beams(3 * num_beams), of_automata(num_beams * num_automata), integers(2 * num_beams),
        states(num_beams * num_automata), longs(3 * num_beams) {
    float* numbers = of_beams.data();
    prefixes.offsets = &offset;
    prefixes.blank_scores = numbers, prefixes.token_scores = numbers + num_beams, prefixes.fused = numbers + 2 * num_beams;
    prefixes.last_tokens = integers.data(), prefixes.sizes = integers.data() + num_beams;
    prefixes.hashes = longs.data(), prefixes.parent_hashes = longs.data() + num_beams, prefixes.texts = longs.data() + 2 * num_beams;
    prefixes.lm_scores = of_automata.data(), prefixes.lm_states = states.data();
  }

  // Before the first frame: the empty prefix alone.
  const Prefixes& begin(const int32_t* first_states) {
    std::fill(of_beams.begin(), of_beams.end(), 0.f);
    std::fill_n(prefixes.blank_scores + 1, 2 * num_beams - 1, NEG_INF);
    std::fill(of_automata.begin(), of_automata.end(), 0.f);
    std::fill(longs.begin(), longs.end(), 0);
    offset = 0.0;
    prefixes.hashes[0] = FIRST_HASH;
    prefixes.last_tokens[0] = -1;
    prefixes.sizes[0] = 0;
    std::copy_n(first_states, num_automata, prefixes.lm_states);
    return prefixes;
  }

 private:
  const int64_t num_beams, num_automata;
  double offset = 0.0;
  std::vector<float> of_beams, of_automata;
  std::vector<int32_t> integers, states;
  std::vector<int64_t> longs;
  Prefixes prefixes;
};

// Merges prefixes of the same text.
class TextMerger {
 public:
  explicit TextMerger(int64_t num_beams) : num_beams(num_beams), last_slot(slots_for(num_beams) - 1), slots(2 * num_beams) {
    for (auto& table : tables) table.assign(last_slot + 1, -1);
  }

  // Give what ends in a blank to the best prefix of each text, and what ends in a token to the best one that ends in it, too.
  // `totals` [K] are of both. Returns whether a prefix has lost all it had.
  bool merge(const Prefixes& p, double* totals) {
    bool is_shared = false;
    for (int32_t k = 0; k < num_beams; ++k)
      if (totals[k] > NEG_INF_DOUBLE) is_shared |= enter(p, totals, k);
    bool has_lost = false;
    for (int32_t k = 0; k < num_beams && is_shared; ++k) {
      if (!(totals[k] > NEG_INF_DOUBLE)) continue;
      move(p.blank_scores, k, tables[0][slots[k]]);
      move(p.token_scores, k, tables[1][slots[num_beams + k]]);
    }
    for (int32_t k = 0; k < num_beams; ++k) {
      if (!(totals[k] > NEG_INF_DOUBLE)) continue;
      tables[0][slots[k]] = tables[1][slots[num_beams + k]] = -1;
      if (!is_shared) continue;
      totals[k] = add_logs(p.blank_scores[k], p.token_scores[k]);
      has_lost |= totals[k] == NEG_INF_DOUBLE;
    }
    return has_lost;
  }

  // The same where utterances end: only the best prefix of each text is left.
  void merge_at_end(const Prefixes& p) {
    std::vector<double> totals(num_beams);
    for (int64_t k = 0; k < num_beams; ++k) {
      totals[k] = p.blank_scores[k] = float(add_logs(p.blank_scores[k], p.token_scores[k]));
      p.token_scores[k] = NEG_INF;
    }
    merge(p, totals.data());
  }

 private:
  const int64_t num_beams, last_slot;
  std::vector<int32_t> tables[2];  // the best place of each text, and of each text and last token; -1 in what is empty
  std::vector<int32_t> slots;      // of each place in both

  // Whether another prefix has its text already.
  bool enter(const Prefixes& p, const double* totals, int32_t k) {
    bool is_shared = false;
    uint64_t key = uint64_t(p.texts[k]);
    for (int kind = 0; kind < 2; ++kind) {
      std::vector<int32_t>& table = tables[kind];
      int64_t slot = int64_t(key >> 32) & last_slot;  // the higher bits depend on all characters
      int32_t other;
      while ((other = table[slot]) >= 0 &&
             !(p.texts[other] == p.texts[k] && (kind == 0 || p.last_tokens[other] == p.last_tokens[k])))
        slot = (slot + 1) & last_slot;
      slots[kind * num_beams + k] = int32_t(slot);
      is_shared |= other >= 0;
      if (other < 0 || is_better(p, totals, k, other)) table[slot] = k;
      key = (key ^ uint64_t(int64_t(p.last_tokens[k]))) * 6364136223846793005u;
    }
    return is_shared;
  }

  static bool is_better(const Prefixes& p, const double* totals, int32_t a, int32_t b) {
    const double of_a = totals[a] + p.fused[a], of_b = totals[b] + p.fused[b];
    return of_a != of_b ? of_a > of_b : p.is_before(a, b);
  }

  static void move(float* scores, int32_t from, int32_t to) {
    if (from == to) return;
    scores[to] = float(add_logs(scores[to], scores[from]));
    scores[from] = NEG_INF;
  }
};

}  // namespace ngpulm
