#include "timing.hpp"

#include <algorithm>

namespace ptx {

void Clock::begin(const Program& program) {
  std::fill_n(issue, SCHEDULERS, 0.0), std::fill_n(pipes[0], SCHEDULERS * NUM_PIPES, 0.0), port = from_l2 = 0;
  l1.assign(timing.l1_sectors, 0), warps.assign(program.warps.size(), Timed());
  for (Timed& each : warps) each.ready.assign(launch.num_registers, 0.0);
  for (const Warp& warp : program.warps) next(warp);
}

// Tensors are spread: they begin at lines of a GPU, which a CPU's don't.
void Clock::touch(const uint8_t* tensor, int64_t offset, int64_t size) {
  const uint64_t first = reinterpret_cast<uint64_t>(tensor) * (LINE / SECTOR * 2) + offset;
  for (uint64_t sector = first / SECTOR; sector <= (first + size - 1) / SECTOR; ++sector) touched.push_back(sector);
}

void Clock::next(const Warp& warp) {
  Timed& timed = warps[warp.number];
  const Part* least = nullptr;
  for (const Part& part : warp.parts)
    if (part.state == RUNS && (!least || part.at < least->at)) least = &part;
  if (!(timed.runs = least)) return;
  const Instruction& in = launch.code[least->at];
  timed.operands = in.slots ? timed.now : 0, timed.pipe = in.pipe;
  const auto needs = [&](int64_t index) {
    if (index >= 0) timed.operands = std::max(timed.operands, timed.ready[index]);
  };
  needs(in.guard), needs(in.base);
  for (int64_t i = in.results; i < 6; ++i) needs(in.registers[i]);
}

Warp* Clock::first(Program& program) {
  Warp* found = nullptr;
  double soonest = 0;
  for (Warp& warp : program.warps) {
    const Timed& timed = warps[warp.number];
    const int on = warp.number % SCHEDULERS;
    const double start = std::max({timed.operands, timed.now, issue[on], pipes[on][timed.pipe]});
    if (timed.runs && (!found || start < soonest)) found = &warp, soonest = start;
  }
  return found;
}

// Returns when an access is done: lines pass the port to L1 one by one, and what is missing there comes from L2.
double Clock::memory(const Instruction& in, double start) {
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  int64_t lines = touched.empty() ? std::max<int64_t>(1, in.width * in.count * LANES / LINE) : 1, missing = 0;  // if shared
  double latency = in.latency;
  for (size_t i = 1; i < touched.size(); ++i) lines += touched[i] * SECTOR / LINE != touched[i - 1] * SECTOR / LINE;
  for (const uint64_t sector : touched) {
    uint64_t &near = l1[sector % timing.l1_sectors], &far = timing.l2[sector * 0x9E3779B97F4A7C15u >> (64 - timing.l2_bits)];
    if (in.results && near != sector) ++missing, latency = std::max<double>(latency, timing.l2_latency);
    if (in.results && near != sector && far != sector) latency = std::max<double>(latency, timing.dram_latency);
    timing.from_dram += far != sector;
    near = far = sector;
  }
  timing.sectors += touched.size(), timing.to_l2 += in.results ? missing : int64_t(touched.size());
  timing.busy[MEMORY] += lines;
  port = std::max(port, start) + lines;
  if (!missing) return port - 1 + latency;
  return from_l2 = std::max(from_l2, port - 1 + latency) + double(missing) / timing.sectors_a_cycle;
}

void Clock::issued(const Warp& warp, const Instruction& in, bool runs, bool jumps) {
  Timed& timed = warps[warp.number];
  const int on = warp.number % SCHEDULERS;
  const double before = timed.now;
  double done = timed.operands;
  if (in.slots) {
    const double start = std::max({done, issue[on], pipes[on][in.pipe]});
    timed.now = issue[on] = start + (runs ? in.slots : 1), timing.busy[ISSUE] += runs ? in.slots : 1;
    done = start + in.latency;
    if (runs && in.pipe == MEMORY) done = memory(in, start);
    else if (runs) pipes[on][in.pipe] = start + in.busy, timing.busy[in.pipe] += in.pipe != ISSUE ? in.busy : 0;
    if (jumps) timed.now = done;
  }
  touched.clear();
  for (int64_t i = 0; runs && i < in.results; ++i)
    if (in.registers[i] >= 0) timed.ready[in.registers[i]] = done;
  timing.spent[&in - launch.code] += (timed.now - before) / double(warps.size());
  next(warp);
}

void Clock::pass_barrier(const Program& program) {
  double last = 0;
  for (const Warp& warp : program.warps)
    if (!warp.parts.empty()) last = std::max(last, warps[warp.number].now);
  for (const Warp& warp : program.warps) {
    if (warp.parts.empty()) continue;
    Timed& timed = warps[warp.number];
    const Instruction& in = launch.code[warp.parts[0].at - 1];
    timing.spent[&in - launch.code] += (last + in.latency - timed.now) / double(warps.size());
    timed.now = last + in.latency, next(warp);
  }
  ++timing.barriers;
}

void Clock::end() {
  double last = 0;
  for (const Timed& each : warps) last = std::max(last, each.now);
  ++timing.programs, timing.cycles += last, timing.longest = std::max(timing.longest, last);
}

}  // namespace ptx
