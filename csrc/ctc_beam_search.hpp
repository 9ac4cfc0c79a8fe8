// CTC prefix beam search with language models. hf_ngpulm/search/ctc_beam is the definition (Hannun et al., arXiv 1408.2873).
//
// Every extension competes with its LM score, yet few extensions are computed. An upper bound of an extension's score is the
// prefix's score plus the token's acoustic score plus the best LM score of any token in the prefix's state. Extensions whose
// bound is below the worst of the best K candidates so far are skipped. This pruning is exact: it can't change the result.
#pragma once
#include "ctc_beam.hpp"
#include "score_cache.hpp"

namespace ngpulm {

template <class Token>
class PrefixSearch {
 public:
  PrefixSearch(const Automaton<Token>& lm, const NgpulmFrames& frames, const NgpulmBeamRules& rules)
      : lm(lm),
        frames(frames),
        rules(rules),
        num_beams(rules.num_beams),
        num_automata(rules.num_automata),
        candidates(int32_t(std::min<int64_t>(lm.vocab_size, frames.classes))),
        least_skipped(std::log(rules.skip)),
        cache(lm, num_automata, frames.classes, frames.blank, num_beams),
        merger(rules.text_hashes ? num_beams : 0),
        plain(frames.classes),
        listed(frames.classes),
        likely(frames.classes),
        old_lm_scores(num_beams * num_automata),
        old_lm_states(num_beams * num_automata),
        by_hash(slots_for(num_beams)) {
    for (auto* numbers : {&totals, &old_totals, &reach, &by_blank, &by_token, &from_parent, &stayed, &together})
      numbers->resize(num_beams);
    for (auto* numbers : {&old_blank_scores, &old_fused, &highest_added}) numbers->resize(num_beams);
    for (auto* numbers : {&parents, &first_child, &next_child, &old_last, &old_sizes}) numbers->resize(num_beams);
    for (auto* numbers : {&old_hashes, &old_texts}) numbers->resize(num_beams);
    for (auto* flags : {&known, &stays}) flags->resize(num_beams);
    alive.reserve(num_beams);
    heap.reserve(num_beams + 1);
  }

  // Whether the tokens and states of a row's prefixes exist.
  bool is_sound(const Prefixes& prefixes) const {
    for (int64_t k = 0; k < num_beams; ++k)
      if (prefixes.has(k) && (prefixes.last_tokens[k] < -1 || prefixes.last_tokens[k] >= frames.classes)) return false;
    return are_states_sound(lm, prefixes, num_beams, num_automata);
  }

  // Search the frames of row `number` of the batch, which is row `row` of the session. `links` and `labels` [T, K] come in as
  // those of frames that change nothing. `max_probs` [T], unless null, gets the highest probability of each frame. Returns the
  // first frame with NaN or infinity, or -1.
  int32_t run(int64_t number, int64_t row, const Prefixes& prefixes, int32_t* links, int32_t* labels, float* max_probs) {
    p = prefixes;
    begin_row(row);
    const int32_t length = frames.lengths[number];
    for (int32_t frame = 0; frame < length; ++frame) {
      x = frame_of(frames, number, frame);
      if (x.is_broken()) return frame;
      if (max_probs) max_probs[frame] = x.max_prob(frames.blank);
      blank_log_prob = double(x.logits[frames.blank]) - x.normaliser;
      is_skipped = blank_log_prob > least_skipped;
      if (has_changed) find_families();
      stay();
      if (!is_skipped) extend();
      if (best == NEG_INF_DOUBLE) continue;  // no candidate: sums with huge weights overflowed
      renew(links + frame * num_beams, labels + frame * num_beams);
    }
    return -1;
  }

 private:
  struct Candidate {
    double score;
    int32_t place, token;  // a token below 0: the prefix stays
  };

  const Automaton<Token>& lm;
  const NgpulmFrames& frames;
  const NgpulmBeamRules& rules;
  const int64_t num_beams, num_automata;
  const int32_t candidates;    // classes that the automata score
  const double least_skipped;  // log-probability of the blank above which a frame can only be a blank
  ScoreCache<Token> cache;
  TextMerger merger;

  // State of the present row and frame.
  Prefixes p;
  float bonus = 0.f, unscored = 0.f;
  const float* weights = nullptr;
  Frame x{};
  double blank_log_prob = 0.0, best = 0.0, worst = 0.0;
  bool is_skipped = false;
  bool has_changed = true;  // whether the beam's prefixes differ from those of the frame before
  int64_t used = 0;         // places before this one may hold prefixes
  std::vector<int32_t> alive;
  std::vector<Candidate> heap;  // the best K candidates so far: a heap with the worst on top once there are K
  int64_t num_new = 0;

  std::vector<float> plain;  // score that each token adds besides those of the automata
  std::vector<int32_t> listed, likely;
  // By place.
  std::vector<double> totals, old_totals, reach, by_blank, by_token, from_parent, stayed, together;
  std::vector<float> old_blank_scores, old_fused, highest_added, old_lm_scores;
  std::vector<int32_t> parents, first_child, next_child, old_last, old_sizes, old_lm_states, by_hash;
  std::vector<int64_t> old_hashes, old_texts;
  std::vector<uint8_t> known, stays;  // known: whether `highest_added` is set

  void begin_row(int64_t row) {
    bonus = rules.bonuses[row], unscored = rules.unscored[row], weights = rules.weights + row * num_automata;
    std::fill(plain.begin(), plain.begin() + candidates, bonus);
    std::fill(plain.begin() + candidates, plain.end(), bonus + unscored);
    cache.use(weights, plain.data());
    std::fill(known.begin(), known.end(), 0);
    has_changed = true;
    used = num_beams;
    for (int64_t k = 0; k < num_beams; ++k) totals[k] = add_logs(p.blank_scores[k], p.token_scores[k]);
  }

  int64_t slot_of(int64_t hash) const { return (hash ^ (hash >> 32)) & int64_t(by_hash.size() - 1); }

  // List the prefixes in the beam, and find each one's parent and children among them, by a hash table.
  void find_families() {
    const int64_t last_slot = int64_t(by_hash.size() - 1);
    std::fill(by_hash.begin(), by_hash.end(), -1);
    alive.clear();
    for (int32_t k = 0; k < num_beams; ++k) {
      if (!(totals[k] > NEG_INF_DOUBLE)) continue;
      alive.push_back(k);
      first_child[k] = -1;
      int64_t slot = slot_of(p.hashes[k]);
      while (by_hash[slot] >= 0) slot = (slot + 1) & last_slot;
      by_hash[slot] = k;
    }
    for (const int32_t k : alive) {
      parents[k] = -1;
      for (int64_t slot = slot_of(p.parent_hashes[k]); by_hash[slot] >= 0; slot = (slot + 1) & last_slot) {
        const int32_t j = by_hash[slot];
        if (p.hashes[j] != p.parent_hashes[k] || p.sizes[j] + 1 != p.sizes[k]) continue;
        parents[k] = j;
        next_child[k] = first_child[j];
        first_child[j] = k;
        break;
      }
    }
  }

  // Add candidates that stay: by a blank (to p_b), by the last token once more, or by the parent's extension (both to p_t).
  // The parent's extension is the same prefix, so it is added here, and `extend_by` skips it.
  void stay() {
    for (int64_t k = 0; k < used; ++k) by_blank[k] = totals[k] + blank_log_prob;
    std::fill_n(by_token.begin(), used, NEG_INF_DOUBLE);
    std::fill_n(from_parent.begin(), used, NEG_INF_DOUBLE);
    if (is_skipped) {
      std::copy_n(from_parent.begin(), used, stayed.begin());
      std::copy_n(by_blank.begin(), used, together.begin());
    } else {
      for (const int32_t k : alive) {
        const int32_t token = p.last_tokens[k], parent = parents[k];
        if (token < 0) continue;
        const double log_prob = double(x.logits[token]) - x.normaliser;
        by_token[k] = p.token_scores[k] + log_prob;
        if (parent >= 0) from_parent[k] = (p.last_tokens[parent] == token ? p.blank_scores[parent] : totals[parent]) + log_prob;
      }
      add_all_logs(by_token.data(), from_parent.data(), used, stayed.data());
      add_all_logs(by_blank.data(), stayed.data(), used, together.data());
    }
    heap.clear();
    num_new = 0;
    best = NEG_INF_DOUBLE;
    for (const int32_t k : alive) {
      const double score = together[k] + p.fused[k];
      if (!(score > NEG_INF_DOUBLE)) continue;
      heap.push_back({score, k, -1});
      best = std::max(best, score);
    }
  }

  // The order of candidates. Ties: those that stay, then lower tokens, then lower hashes.
  bool is_better(const Candidate& a, const Candidate& b) const {
    if (a.score != b.score) return a.score > b.score;
    const bool is_new = a.token >= 0;
    if (is_new != (b.token >= 0)) return !is_new;
    if (!is_new) return p.is_before(a.place, b.place);
    return a.token != b.token ? a.token < b.token : p.hashes[a.place] < p.hashes[b.place];
  }
  auto in_order() const {
    return [this](const Candidate& a, const Candidate& b) { return is_better(a, b); };
  }

  // `worst` is the lowest score that can still enter the beam.
  void set_worst() {
    worst = std::max(worst, best - rules.threshold);
    if (int64_t(heap.size()) == num_beams) worst = std::max(worst, heap[0].score);
  }

  void make_heap() { std::make_heap(heap.begin(), heap.end(), in_order()); }

  void offer(const Candidate& candidate) {
    if (int64_t(heap.size()) == num_beams) {
      if (!is_better(candidate, heap[0])) return;
      std::pop_heap(heap.begin(), heap.end(), in_order());
      num_new -= heap.back().token >= 0;
      heap.back() = candidate;
      std::push_heap(heap.begin(), heap.end(), in_order());
    } else {
      heap.push_back(candidate);
      if (int64_t(heap.size()) == num_beams) make_heap();
    }
    ++num_new;
    best = std::max(best, candidate.score);
    set_worst();
  }

  void extend() {
    if (int64_t(heap.size()) == num_beams) make_heap();
    worst = std::numeric_limits<double>::lowest();
    set_worst();
    const double highest = double(x.highest) - x.normaliser;
    double most = NEG_INF_DOUBLE;
    for (const int32_t k : alive) {
      if (!known[k]) highest_added[k] = cache.highest_of_line(cache.line_of(p.lm_states + k * num_automata));
      known[k] = true;
      reach[k] = totals[k] + p.fused[k];
      most = std::max(most, reach[k] + highest_added[k]);
    }
    if (!(most + highest + ROUNDING >= worst)) return;
    // `most` bounds the score of any prefix with the LM score of any token. So tokens with a logit below `bound` can't enter
    // the beam, whichever prefix they extend.
    const float* logits = x.logits;
    const auto bound = float(worst - most + x.normaliser - ROUNDING);
    const int64_t num_likely =
        list_where_above([=](int64_t token) { return logits[token]; }, bound, frames.classes, likely.data());
    const bool are_few = num_likely * 4 < frames.classes;  // then a scan of all classes for each prefix would cost more
    for (const int32_t k : alive) {
      if (!(reach[k] + highest_added[k] + highest + ROUNDING >= worst)) continue;
      const float* added = cache.added(cache.line_of(p.lm_states + k * num_automata));
      if (are_few) {
        extend_by(k, added, likely.data(), num_likely);
      } else {
        const auto sum = [=](int64_t token) { return logits[token] + added[token]; };
        const auto least = float(worst - (reach[k] - x.normaliser) - ROUNDING);
        extend_by(k, added, listed.data(), list_where_above(sum, least, frames.classes, listed.data()));
      }
    }
  }

  void extend_by(int32_t k, const float* added, const int32_t* tokens, int64_t count) {
    const double base = reach[k] - x.normaliser;
    for (int64_t n = 0; n < count; ++n) {
      const int32_t token = tokens[n];
      double score = base + x.logits[token] + added[token];
      if (!(score >= worst)) continue;
      if (token == p.last_tokens[k]) {  // only after a blank is it a new token
        score = double(p.blank_scores[k]) + p.fused[k] - x.normaliser + x.logits[token] + added[token];
        if (!(score >= worst)) continue;
      }
      int32_t child = first_child[k];
      while (child >= 0 && p.last_tokens[child] != token) child = next_child[child];
      if (child < 0) offer({score, k, token});
    }
  }

  // Write the new beam. Prefixes that stay keep their places; new prefixes take the places of prefixes that leave.
  void renew(int32_t* links, int32_t* labels) {
    const double lowest = best - rules.threshold;
    keep_old();
    std::fill(stays.begin(), stays.end(), 0);
    used = 0;
    size_t num_staying = 0;
    for (const Candidate& candidate : heap) {
      if (candidate.token >= 0 || candidate.score < lowest) continue;
      const int32_t k = candidate.place;
      stays[k] = true;
      ++num_staying;
      used = std::max<int64_t>(used, k + 1);
      p.blank_scores[k] = float(by_blank[k]), p.token_scores[k] = float(stayed[k]), totals[k] = together[k];
      if (from_parent[k] > by_blank[k] && from_parent[k] > add_logs(by_blank[k], by_token[k])) {
        links[k] = parents[k];
        labels[k] = p.last_tokens[k];
      } else {
        labels[k] = by_token[k] > by_blank[k] ? INSIDE : BLANK;
      }
    }
    has_changed = num_new > 0 || num_staying < alive.size();
    int32_t place = -1;
    for (const Candidate& candidate : heap) {
      if (candidate.token < 0 || candidate.score < lowest) continue;
      do ++place;
      while (stays[place]);
      put(place, candidate);
      links[place] = candidate.place;
      labels[place] = candidate.token;
    }
    used = std::max<int64_t>(used, place + 1);
    if (rules.text_hashes && merger.merge(p, totals.data())) has_changed = true;
    float top = NEG_INF;
    for (int64_t k = 0; k < used; ++k) top = std::max(top, std::max(p.blank_scores[k], p.token_scores[k]));
    for (int64_t k = 0; k < used; ++k) {
      p.blank_scores[k] -= top;
      p.token_scores[k] -= top;
      // With a single part, the total must equal the part bit by bit, so that equal scores stay equal.
      totals[k] = p.blank_scores[k] > NEG_INF ? totals[k] - top : double(p.token_scores[k]);
    }
    *p.offsets += top;
  }

  void keep_old() {
    for (const int32_t k : alive) {
      old_blank_scores[k] = p.blank_scores[k], old_totals[k] = totals[k];
      p.blank_scores[k] = p.token_scores[k] = NEG_INF;
      totals[k] = NEG_INF_DOUBLE;
    }
    if (num_new == 0) return;
    std::copy_n(p.last_tokens, num_beams, old_last.begin());
    std::copy_n(p.sizes, num_beams, old_sizes.begin());
    std::copy_n(p.fused, num_beams, old_fused.begin());
    std::copy_n(p.hashes, num_beams, old_hashes.begin());
    std::copy_n(p.texts, num_beams, old_texts.begin());
    std::copy_n(p.lm_scores, num_beams * num_automata, old_lm_scores.begin());
    std::copy_n(p.lm_states, num_beams * num_automata, old_lm_states.begin());
  }

  // Write a new prefix to a place in the beam.
  void put(int32_t place, const Candidate& candidate) {
    const int32_t from = candidate.place, token = candidate.token;
    const double before = token == old_last[from] ? double(old_blank_scores[from]) : old_totals[from];
    totals[place] = before + x.logits[token] - x.normaliser;
    p.token_scores[place] = float(totals[place]);
    float extra = plain[token];
    for (int64_t m = 0; m < num_automata; ++m) {
      const int64_t old = from * num_automata + m, at = place * num_automata + m;
      const Step step = token < candidates ? lm.step(old_lm_states[old], token) : Step{0.f, old_lm_states[old]};
      p.lm_states[at] = step.state;
      p.lm_scores[at] = old_lm_scores[old] + step.score;
      if (token < candidates) extra += weights[m] * step.score;
    }
    p.fused[place] = old_fused[from] + extra;
    p.last_tokens[place] = token;
    p.sizes[place] = old_sizes[from] + 1;
    p.parent_hashes[place] = old_hashes[from];
    p.hashes[place] = extended_hash(old_hashes[from], token);
    p.texts[place] = rules.text_hashes ? extend_text(old_texts[from], token) : 0;
    known[place] = false;
  }

  int64_t extend_text(int64_t text, int32_t token) const {
    const auto factor = uint64_t(rules.text_hashes[token]), summand = uint64_t(rules.text_hashes[frames.classes + token]);
    return int64_t(uint64_t(text) * factor + summand);
  }
};

}  // namespace ngpulm
