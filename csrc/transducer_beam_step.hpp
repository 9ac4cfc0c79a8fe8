// One step of a row in beam search for transducers: from the logits of its hypotheses to its new beam.
#pragma once
#include "transducer_lines.hpp"

namespace ngpulm {

// New tokens: the slot of the networks' state before the token, the token, and the slot of the new prediction. Slots are
// numbered over all rows. The hypotheses with these tokens are stored by their places among the hypotheses of all rows.
struct NewTokens {
  std::vector<int64_t> sources, tokens, targets, hypotheses;

  int64_t size() const { return int64_t(tokens.size()); }
  void clear() { sources.clear(), tokens.clear(), targets.clear(), hypotheses.clear(); }
};

// Logits of a hypothesis that must continue (otherwise null), and their log-sum-exp over all classes, over all classes except
// the blank, and over the durations.
struct Said {
  const float* logits;
  double log_sum, other_sum, duration_sum;
  float highest;
};

// Encode a class and a duration in one number.
constexpr int DURATION_BITS = 16;
inline int64_t paired(int64_t label, int64_t duration) { return label << DURATION_BITS | duration; }
inline int64_t label_of(int64_t pair) { return pair >> DURATION_BITS; }
inline int64_t duration_of(int64_t pair) { return pair & ((1 << DURATION_BITS) - 1); }

// A possible new hypothesis.
struct Candidate {
  double score, acoustic_score;
  int64_t time, hash, size;
  int32_t parent, label, move;
};

// Candidates with the same tokens at the same frame: their merged score, and the best of them.
struct Group {
  double score, acoustic_score;
  int32_t best;
};

// Finds a hypothesis's best classes.
class Highest {
 public:
  explicit Highest(int64_t classes) : size_((classes + LANES - 1) / LANES * LANES), fused_(size_, NEG_INF), hits_(size_) {}

  // Compute sums of logits and, if given, the LM scores of `line`; -inf for the blank and for NaN.
  void fuse(const float* __restrict logits, const float* __restrict line, int64_t classes, int64_t blank) {
    float* __restrict fused = fused_.data();
    if (line)
      for (int64_t c = 0; c < classes; ++c) {
        const float sum = logits[c] + line[c];
        fused[c] = sum == sum ? sum : NEG_INF;
      }
    else
      std::copy_n(logits, classes, fused);
    fused[blank] = NEG_INF;
  }

  // Call `take(class, score)` in the order of classes for the `most` highest classes above -inf, and for few other classes.
  template <class Take>
  void each(int64_t most, Take&& take) {
    const float* fused = fused_.data();
    uint8_t* hits = hits_.data();
    const int64_t size = size_;
    Tops tops;
    for (int64_t at = 0; at < size; at += LANES) tops.take(fused + at);
    compare(fused, tops.reached_by(most), size, hits);
    for (int64_t i = 0; i < size; i += 8) {
      uint64_t eight;
      std::memcpy(&eight, hits + i, 8);
      for (; eight; eight &= eight - 1) {  // the first byte is the lowest
        const int64_t c = i + __builtin_ctzll(eight) / 8;
        if (fused[c] > NEG_INF) take(c, fused[c]);
      }
    }
  }

 private:
  // Bit mask of the numbers that reach a bound.
  static void compare(const float* __restrict numbers, float least, int64_t size, uint8_t* __restrict hits) {
    for (int64_t i = 0; i < size; ++i) hits[i] = numbers[i] >= least;
  }

  int64_t size_;
  Floats fused_;
  std::vector<uint8_t> hits_;
};

template <class LM>
class BeamStep {
 public:
  // Args: calls: approximate number of steps.
  BeamStep(const LM& lm, const NgpulmClasses& classes, const NgpulmBeamSettings& rules, const NgpulmBeamRows& rows,
           const NgpulmBeam& beam, const NgpulmSteps& steps, int64_t calls)
      : lm_(lm),
        classes_(classes),
        rules_(rules),
        rows_(rows),
        beam_(beam),
        steps_(steps),
        lines_(lm, rules, beam, rows.weights, classes.tokens, beam.lines ? calls : 0),
        highest_(classes.tokens),
        old_(beam.num_beams),
        said_(beam.num_beams),
        old_states_(beam.num_beams * beam.num_automata),
        old_scores_(beam.num_beams * beam.num_automata),
        occupied_(beam.slots_of_row) {
    const int64_t durations = std::max<int64_t>(classes.num_durations, 1);
    most_extensions_ = std::min(rules.most_extensions, classes.tokens * durations);
    const int64_t most = beam.num_beams * (most_extensions_ + 1);
    candidates_.resize(most), groups_.reserve(most);
    size_t buckets = 8;
    while (int64_t(buckets) < 2 * most) buckets *= 2;
    buckets_.resize(buckets);
  }

  // The number of trace entries that one step can need.
  int64_t room(int64_t row) const { return rules_.aes_steps && rows_.phases[row] == 0 ? beam_.num_beams + 1 : 1; }

  bool has_states(int64_t row) const {
    const int64_t most = beam_.num_beams * beam_.num_automata;
    const int32_t* states = beam_.lm_states + row * most;
    for (int64_t i = 0; i < most; ++i)
      if (!lm_.has(states[i]) && take(beam_, row, i / beam_.num_automata).is_live()) return false;
    return true;
  }

  // Take a step. `logits_of(k)` returns a hypothesis's logits, or null if it must not continue. New tokens are appended.
  template <class LogitsOf>
  void run(int64_t row, LogitsOf&& logits_of, NewTokens& fresh) {
    row_ = row;
    total_ = rules_.blank_aware ? rows_.totals[row] : 0.0;
    bool any = false;
    for (int64_t k = 0; k < beam_.num_beams; ++k) {
      old_[k] = take(beam_, row, k);
      said_[k] = said(logits_of(k));
      any |= said_[k].logits != nullptr;
    }
    if (!any || is_broken()) return;
    ++rows_.phases[row];
    if (rules_.aes_steps && rows_.phases[row] == 1) merge_prefixes();
    num_candidates_ = 0;
    for (int32_t k = 0; k < beam_.num_beams; ++k)
      if (old_[k].is_live()) said_[k].logits ? extend(k) : stand_still(k);
    join_those_that_are_same();
    renew(fresh);
    ++steps_.used[row];
  }

  // Write the LM scores of all classes after hypotheses, which are given by their places among the hypotheses of all rows.
  void write_lines(const std::vector<int64_t>& hypotheses) {
    if (!beam_.lines) return;
    lines_.read_ahead(hypotheses);
    for (int64_t at : hypotheses) lines_.fill(at / beam_.num_beams, at % beam_.num_beams);
  }

 private:
  Said said(const float* logits) const {
    Said made{logits, 0.0, NEG_INF_DOUBLE, 0.0, 0.f};
    if (!logits) return made;
    const int64_t blank = classes_.blank, after = blank + 1, behind = classes_.tokens - after;
    const float highest = std::max(highest_of(logits, blank), highest_of(logits + after, behind)), of_blank = logits[blank];
    made.highest = std::max(highest, of_blank);
    if (highest > NEG_INF)
      made.other_sum = highest + std::log(sum_of_exp(logits, blank, highest) + sum_of_exp(logits + after, behind, highest));
    else if (std::any_of(logits, logits + classes_.tokens, [](float logit) { return logit != logit; }))
      made.other_sum = std::numeric_limits<double>::quiet_NaN();
    const bool is_number = made.other_sum < -NEG_INF_DOUBLE && of_blank < -NEG_INF;
    made.log_sum = is_number ? add_logs(made.other_sum, of_blank) : std::numeric_limits<double>::quiet_NaN();
    if (classes_.num_durations) made.duration_sum = normaliser_of(logits + classes_.tokens, classes_.num_durations).log_sum;
    return made;
  }

  // Whether logits contain NaN or infinity. The row's search then ends.
  bool is_broken() {
    int64_t bad = -1;
    for (int64_t k = 0; k < beam_.num_beams; ++k)
      if (said_[k].logits && !std::isfinite(said_[k].log_sum + said_[k].duration_sum))
        bad = bad < 0 ? old_[k].time : std::min(bad, old_[k].time);
    if (bad < 0) return false;
    beam_.bad_frames[row_] = bad;
    rows_.lengths[row_] = 0;
    std::fill_n(beam_.times + row_ * beam_.num_beams, beam_.num_beams, rows_.limits[row_]);
    return true;
  }

  // The part of blank-aware scoring that all tokens share: W log(1 - p(blank)).
  double common(const Said& said) const {
    return total_ != 0.0 ? total_ * (said.other_sum - said.log_sum) - said.log_sum : -said.log_sum;
  }

  int64_t step_at(int64_t number, int64_t k) const { return (number * steps_.batch + row_) * beam_.num_beams + k; }

  float confidence_sum(const Said& said) const {
    return classes_.measure < 0 ? 0.f : sum_for_confidence(classes_, said.logits, said.log_sum, said.highest);
  }

  // Prefix merging in AES: add to each hypothesis its parent's extension by its last token, if the beam has the parent.
  void merge_prefixes() {
    const int64_t num_beams = beam_.num_beams;
    by_size_.resize(num_beams);
    depths_.assign(num_beams, 0);
    for (int32_t k = 0; k < num_beams; ++k) by_size_[k] = k;
    // Shorter hypotheses come first, because they pass their gain on to longer ones.
    std::stable_sort(by_size_.begin(), by_size_.end(), [&](int32_t a, int32_t b) { return old_[a].size < old_[b].size; });
    int64_t deepest = 0;
    for (int32_t k : by_size_) {
      Hypothesis& longer = old_[k];
      if (!said_[k].logits || !longer.size) continue;
      for (int32_t j = 0; j < num_beams; ++j) {
        const Hypothesis& shorter = old_[j];
        if (!said_[j].logits || !shorter.has_tokens_of(longer.parent_hash, longer.size - 1)) continue;
        const double gain = said_[j].logits[longer.last_token] - said_[j].log_sum;
        if (gain == NEG_INF_DOUBLE) break;
        double score = shorter.score + common(said_[j]) + said_[j].logits[longer.last_token];
        if (beam_.lines) score += lines_.of(row_, shorter.slot)[longer.last_token];
        if (score > longer.score) {
          depths_[k] = depths_[j] + 1;
          deepest = std::max(deepest, depths_[k]);
          const int64_t at = step_at(steps_.used[row_] + depths_[k] - 1, k);
          steps_.links[at] = j, steps_.labels[at] = int32_t(longer.last_token), steps_.sums[at] = confidence_sum(said_[j]);
        }
        join(longer.score, longer.acoustic_score, score, shorter.acoustic_score + gain);
        break;
      }
    }
    steps_.used[row_] += deepest;
  }

  // The merged score of two alignments of a hypothesis.
  void join(double& score, double& acoustic_score, double other, double other_acoustic) const {
    if (rules_.log_sum) {
      score = add_logs(score, other);
      acoustic_score = add_logs(acoustic_score, other_acoustic);
    } else if (other > score) {
      score = other, acoustic_score = other_acoustic;
    }
  }

  void stand_still(int32_t k) {
    const Hypothesis& from = old_[k];
    candidates_[num_candidates_++] = {from.score, from.acoustic_score, from.time, from.hash, from.size, k, STILL, 0};
  }

  // List the extensions of a hypothesis.
  void extend(int32_t k) {
    const Said& said = said_[k];
    const int64_t blank = classes_.blank;
    const bool may_emit = rules_.aes_steps ? rows_.phases[row_] <= rules_.aes_steps : old_[k].symbols < rules_.max_symbols;
    const float* line = beam_.lines ? lines_.of(row_, old_[k].slot) : nullptr;
    const double common = this->common(said), blank_log_prob = said.logits[blank] - said.log_sum;
    const double of_blank =
        total_ != 0.0 && blank_log_prob > NEG_INF_DOUBLE ? blank_log_prob + total_ * blank_log_prob : blank_log_prob;
    ranked_.begin(most_extensions_);
    // Classes are inserted in the order of their ids, because among equal ranks the first one wins.
    bool needs_blank = blank_log_prob > NEG_INF_DOUBLE;
    const auto rank_blank = [&] {
      if (needs_blank) ranked_.insert(rules_.late ? of_blank : blank_log_prob, paired(blank, 0));
      needs_blank = false;
    };
    if (may_emit) {
      highest_.fuse(said.logits, rules_.late ? line : nullptr, classes_.tokens, blank);
      const double offset = rules_.late ? common : -said.log_sum;
      highest_.each(most_extensions_, [&](int64_t label, float score) {
        if (label > blank) rank_blank();
        ranked_.insert(score + offset, paired(label, 0));
      });
    }
    rank_blank();
    if (classes_.num_durations) pair_with_durations(said, line, common, of_blank);
    for (int64_t i = 0; i < ranked_.size(); ++i) {
      // Adaptive expansion (Kim et al. 2020): only classes near the best one extend the hypothesis.
      if (rules_.aes_steps && ranked_.rank(i) <= ranked_.rank(0) - rules_.aes_gamma) break;
      const int64_t label = label_of(ranked_.value(i)), duration = duration_of(ranked_.value(i));
      const double of_duration = classes_.num_durations ? said.logits[classes_.tokens + duration] - said.duration_sum : 0.0;
      const double added = label == blank ? of_blank : said.logits[label] + common + (line ? line[label] : 0.f);
      add_candidate(k, label, duration, added + of_duration, said.logits[label] - said.log_sum + of_duration);
    }
  }

  // Choose the best pairs of a chosen class and a duration. Early pruning also ranks the pairs with LM scores.
  void pair_with_durations(const Said& said, const float* line, double common, double of_blank) {
    durations_.begin(classes_.num_durations);
    for (int64_t d = 0; d < classes_.num_durations; ++d)
      durations_.insert(said.logits[classes_.tokens + d] - said.duration_sum, d);
    pairs_.begin(most_extensions_);
    for (int64_t i = 0; i < ranked_.size(); ++i) {
      const int64_t label = label_of(ranked_.value(i));
      double rank = ranked_.rank(i);
      if (!rules_.late) {
        rank = label == classes_.blank ? of_blank : said.logits[label] + common + (line ? line[label] : 0.f);
        if (rank != rank) rank = NEG_INF_DOUBLE;  // -inf minus -inf
      }
      for (int64_t d = 0; d < durations_.size() && pairs_.takes(rank + durations_.rank(d)); ++d)
        pairs_.insert(rank + durations_.rank(d), paired(label, durations_.value(d)));
    }
    std::swap(ranked_, pairs_);
  }

  void add_candidate(int32_t k, int64_t label, int64_t duration, double score, double gain) {
    const Hypothesis& from = old_[k];
    int64_t move = classes_.num_durations ? classes_.durations[duration] : label == classes_.blank;
    int64_t hash = from.hash, size = from.size;
    if (label == classes_.blank) {
      move = std::max<int64_t>(move, 1);
    } else {
      hash = extended_hash(hash, label), ++size;
      if (rules_.aes_steps)  // `merge_prefixes` has merged such an extension with the hypothesis of the beam
        for (const Hypothesis& known : old_)
          if (known.is_live() && known.has_tokens_of(hash, size)) return;
    }
    if (!(from.score + score > NEG_INF_DOUBLE)) return;
    Candidate& made = candidates_[num_candidates_++];  // written in place, field by field: a copy would wait for the fields
    made.score = from.score + score, made.acoustic_score = from.acoustic_score + gain;
    made.time = std::min(from.time + move, rows_.lengths[row_]), made.hash = hash, made.size = size;
    made.parent = k, made.label = int32_t(label), made.move = int32_t(move);
  }

  // Group candidates with the same tokens at the same frame: their futures are the same. Tokens count as equal if their number
  // and 64-bit hash are equal.
  void join_those_that_are_same() {
    std::fill(buckets_.begin(), buckets_.end(), -1);
    groups_.clear();
    const size_t mask = buckets_.size() - 1;
    for (int32_t i = 0; i < num_candidates_; ++i) {
      const Candidate& candidate = candidates_[i];
      for (size_t bucket = uint64_t(candidate.hash) ^ (uint64_t(candidate.time) * 0x9E3779B1);; ++bucket) {
        int32_t& number = buckets_[bucket & mask];
        if (number < 0) {
          number = int32_t(groups_.size());
          groups_.push_back({candidate.score, candidate.acoustic_score, i});
          break;
        }
        Group& group = groups_[number];
        const Candidate& other = candidates_[group.best];
        if (other.hash != candidate.hash || other.time != candidate.time || other.size != candidate.size) continue;
        if (candidate.score > other.score) group.best = i;
        join(group.score, group.acoustic_score, candidate.score, candidate.acoustic_score);
        break;
      }
    }
  }

  // Write the best groups as the row's new beam.
  void renew(NewTokens& fresh) {
    const int64_t num_beams = beam_.num_beams, automata = beam_.num_automata;
    chosen_.begin(num_beams);
    group_of_.assign(num_candidates_, -1);  // by the best candidate
    for (size_t i = 0; i < groups_.size(); ++i) group_of_[groups_[i].best] = int32_t(i);
    for (const int32_t group : group_of_)
      if (group >= 0) chosen_.insert(groups_[group].score + share_of(groups_[group]), group);
    std::copy_n(beam_.lm_states + row_ * num_beams * automata, num_beams * automata, old_states_.data());
    std::copy_n(beam_.lm_scores + row_ * num_beams * automata, num_beams * automata, old_scores_.data());
    std::fill(occupied_.begin(), occupied_.end(), false);
    for (const Hypothesis& old : old_)
      if (old.is_live()) occupied_[old.slot] = true;
    int64_t* uses = beam_.slot_uses + row_ * (beam_.slots_of_row + 1);
    const int64_t now = ++uses[beam_.slots_of_row];  // a clock
    for (int64_t k = 0; k < num_beams; ++k) {
      Hypothesis made = old_[k];
      if (k < chosen_.size()) {
        made = become(k, groups_[chosen_.value(k)], fresh);
        occupied_[made.slot] = true;
        uses[made.slot] = now;
      } else {
        made.score = made.acoustic_score = NEG_INF_DOUBLE;
      }
      put(beam_, row_, k, made);
    }
  }

  // The share of a group is that of the hypothesis from which its best candidate comes.
  double share_of(const Group& group) const { return old_[candidates_[group.best].parent].share; }

  // Write place `k` of the beam: the hypothesis, its step, and its LM states.
  Hypothesis become(int64_t k, const Group& group, NewTokens& fresh) {
    const Candidate& best = candidates_[group.best];
    const int64_t automata = beam_.num_automata, at = step_at(steps_.used[row_], k);
    int32_t* states = beam_.lm_states + (row_ * beam_.num_beams + k) * automata;
    float* lm_scores = beam_.lm_scores + (row_ * beam_.num_beams + k) * automata;
    steps_.links[at] = best.parent, steps_.labels[at] = best.label, steps_.moves[at] = best.move;
    std::copy_n(old_states_.data() + best.parent * automata, automata, states);
    std::copy_n(old_scores_.data() + best.parent * automata, automata, lm_scores);
    Hypothesis made = old_[best.parent];
    made.score = group.score, made.acoustic_score = group.acoustic_score, made.time = best.time;
    if (best.label == classes_.blank) made.symbols = 0;
    if (best.label == classes_.blank || best.label == STILL) return made;
    made.symbols = best.move > 0 ? 0 : made.symbols + 1;
    made.size = best.size, made.last_token = best.label, made.parent_hash = made.hash, made.hash = best.hash;
    steps_.sums[at] = confidence_sum(said_[best.parent]);
    for (int64_t m = 0; m < automata; ++m) {
      const Step step = lm_.step(states[m], best.label);
      states[m] = step.state;
      lm_scores[m] += step.score;
    }
    find_slot(made, k, fresh);
    return made;
  }

  // Find or take a slot for a new prediction. Hypotheses with the same tokens share one.
  void find_slot(Hypothesis& made, int64_t k, NewTokens& fresh) {
    const int64_t begin = row_ * beam_.slots_of_row, *uses = beam_.slot_uses + row_ * (beam_.slots_of_row + 1);
    int64_t *hashes = beam_.slot_hashes + begin, *sizes = beam_.slot_sizes + begin, oldest = -1;
    const int64_t source = begin + made.slot;
    for (int64_t slot = 0; slot < beam_.slots_of_row; ++slot) {
      if (hashes[slot] == made.hash && sizes[slot] == made.size) {
        made.slot = slot;
        return;
      }
      if (!occupied_[slot] && (oldest < 0 || uses[slot] < uses[oldest])) oldest = slot;
    }
    made.slot = oldest, hashes[oldest] = made.hash, sizes[oldest] = made.size;
    fresh.sources.push_back(source), fresh.tokens.push_back(made.last_token), fresh.targets.push_back(begin + oldest);
    fresh.hypotheses.push_back(row_ * beam_.num_beams + k);
  }

  const LM& lm_;
  const NgpulmClasses& classes_;
  const NgpulmBeamSettings& rules_;
  const NgpulmBeamRows& rows_;
  const NgpulmBeam& beam_;
  const NgpulmSteps& steps_;
  Lines<LM> lines_;
  Highest highest_;
  int64_t row_ = 0, most_extensions_ = 0;
  double total_ = 0.0;
  std::vector<Hypothesis> old_;
  std::vector<Said> said_;
  std::vector<int32_t> old_states_;
  std::vector<float> old_scores_;
  std::vector<uint8_t> occupied_;
  std::vector<int32_t> by_size_;
  std::vector<int64_t> depths_;
  Best ranked_, pairs_, durations_, chosen_;
  std::vector<Candidate> candidates_;
  int32_t num_candidates_ = 0;
  std::vector<Group> groups_;
  std::vector<int32_t> buckets_, group_of_;
};

}  // namespace ngpulm
