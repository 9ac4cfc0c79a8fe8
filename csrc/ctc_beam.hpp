// State of CTC prefix beam search. hf_ngpulm/search/ctc_beam is the definition.
#pragma once
#include "automaton.hpp"
#include "ctc_rows.hpp"

// See hf_ngpulm/search/ctc_beam/cpu.py.
struct NgpulmBeamRules {
  const float *weights, *bonuses, *unscored;
  const int64_t* text_hashes;
  int64_t num_automata, num_beams;
  double threshold, skip;
};

namespace ngpulm {

inline int64_t slots_for(int64_t count) {
  int64_t slots = 4;
  while (slots < 2 * count) slots *= 2;
  return slots;
}

// The prefixes of one row: arrays [K] or [K, M], one after the other in a block of memory
// (`beams_of` in hf_ngpulm/search/ctc_beam/cpu.py).
struct Prefixes {
  double* offsets = nullptr;
  int64_t *hashes = nullptr, *parent_hashes = nullptr, *texts = nullptr;
  float *blank_scores = nullptr, *token_scores = nullptr, *fused = nullptr, *lm_scores = nullptr;
  int32_t *last_tokens = nullptr, *sizes = nullptr, *lm_states = nullptr;

  Prefixes() = default;
  Prefixes(void* block, int64_t row, int64_t num_beams, int64_t num_automata) {
    char* next = static_cast<char*>(block) + row * bytes(num_beams, num_automata);
    const auto take = [&](auto*& array, int64_t count) {
      array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(next);
      next += count * sizeof(*array);
    };
    take(offsets, 1);
    take(hashes, num_beams), take(parent_hashes, num_beams), take(texts, num_beams);
    take(blank_scores, num_beams), take(token_scores, num_beams), take(fused, num_beams);
    take(lm_scores, num_beams * num_automata);
    take(last_tokens, num_beams), take(sizes, num_beams), take(lm_states, num_beams * num_automata);
  }

  static int64_t bytes(int64_t num_beams, int64_t num_automata) {
    return (8 + num_beams * (3 * 8 + 5 * 4 + num_automata * 8) + 7) / 8 * 8;
  }

  // The order of two prefixes with the same score.
  bool is_before(int64_t a, int64_t b) const {
    return last_tokens[a] != last_tokens[b] ? last_tokens[a] < last_tokens[b] : parent_hashes[a] < parent_hashes[b];
  }
  bool has(int64_t place) const { return std::max(blank_scores[place], token_scores[place]) > NEG_INF; }
};

// Return whether the automata's states of a row's prefixes exist.
template <class Token>
bool are_states_sound(const Automaton<Token>& lm, const Prefixes& prefixes, int64_t num_beams, int64_t num_automata) {
  for (int64_t k = 0; k < num_beams; ++k)
    if (prefixes.has(k) && !lm.has_all(prefixes.lm_states + k * num_automata, num_automata)) return false;
  return true;
}

// Merges prefixes of the same text.
class TextMerger {
 public:
  explicit TextMerger(int64_t num_beams) : num_beams(num_beams), last_slot(slots_for(num_beams) - 1), slots(2 * num_beams) {
    for (auto& table : tables) table.assign(last_slot + 1, -1);
  }

  // Add p_b to the best prefix of each text, and p_t to the best prefix with the same last token. (After a blank, the future
  // doesn't depend on how a text is cut into tokens.) `totals` [K] are the sums of both. Returns whether a prefix has lost
  // both.
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

  // Merge prefixes at the end of utterances: only the best prefix of each text is left.
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
  std::vector<int32_t> tables[2];  // best place by text, and by text and last token; -1: empty
  std::vector<int32_t> slots;      // each place's slot in both tables

  // Whether an earlier prefix has the same text.
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
