// Runs kernels of PTX: memory and what is remembered of it, and in what order warps take turns.
//
// A warp's threads may part at branches. With the seed 0 they go on together as soon as they are at the same place, and warps
// take turns; with others the order is random (of programs, of warps, of parts of a warp), and parts meet at synchronising
// instructions only, as a GPU is free to do.
#include "machine.hpp"

#include "timing.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace ptx {

// ---- memory

namespace {

uint64_t get(Warp& warp, int64_t index, int64_t width, int lane) {
  if (width == 2) return warp.of<uint16_t>(index)[lane];
  return width == 4 ? warp.of<uint32_t>(index)[lane] : warp.of<uint64_t>(index)[lane];
}

void put(Warp& warp, int64_t index, int64_t width, int lane, uint64_t value) {
  if (width == 2) warp.of<uint16_t>(index)[lane] = uint16_t(value);
  else if (width == 4) warp.of<uint32_t>(index)[lane] = uint32_t(value);
  else warp.of<uint64_t>(index)[lane] = value;
}

// What is loaded for a register that may be wider.
uint64_t extended(uint64_t value, const Instruction& in) {
  const int64_t unused = in.is_signed ? 64 - 8 * in.width : 0;
  return uint64_t(int64_t(value << unused) >> unused);
}

// Whether two threads may have touched a place in either order.
bool is_race(const Access& a, const Access& b) {
  if (!a.program || (a.program == b.program && (a.epoch != b.epoch || a.thread == b.thread))) return false;
  return a.program != b.program || a.thread / LANES != b.thread / LANES || a.warp_epoch == b.warp_epoch;
}

void on_read(Machine& m, Cell& cell, const Access& me, int64_t tensor, int64_t offset) {
  if (is_race(cell.write, me)) m.tell(WRITE_READ, cell.write, me, tensor, offset);
  Access& last = cell.read;
  if (last.program != me.program) {
    if (last.program) cell.foreign = last;
    cell.other = {};
  } else if (last.epoch != me.epoch) {
    cell.other = {};
  } else if (last.thread != me.thread) {
    const bool is_far = last.thread / LANES != me.thread / LANES;
    if (is_far || !cell.other.program || cell.other.thread / LANES == me.thread / LANES) cell.other = last;
  }
  last = me;
}

// `is_same`: the value was there before. In shared memory Triton has several threads store the same one: those change nothing.
void on_write(Machine& m, Cell& cell, const Access& me, int64_t tensor, int64_t offset, bool is_same) {
  if (is_same && tensor < 0) return;
  if (is_race(cell.write, me)) m.tell(WRITE_WRITE, cell.write, me, tensor, offset);
  for (const Access* reader : {&cell.read, &cell.other, &cell.foreign})
    if (is_race(*reader, me)) m.tell(READ_WRITE, *reader, me, tensor, offset);
  cell.write = me;
}

struct Place { uint8_t* bytes; Cell* cells; int64_t offset, granule, tensor; };

// Where an access goes to; false, if it mustn't, which is told.
bool find(Machine& m, const Access& me, uint64_t address, int64_t size, bool is_store, bool is_shared, Place& place) {
  const Kind outside = is_store ? STORE_OUTSIDE : LOAD_OUTSIDE;
  int64_t available;
  if (is_shared) {
    Program& program = *m.program;
    place = {program.shared.data(), program.cells.data(), int64_t(address) - SHARED, m.launch.shared_granule, -1};
    available = m.launch.shared;
  } else {
    const int64_t tensor = int64_t(address >> SLOT) - 1;
    if (tensor < 0 || tensor >= m.launch.num_tensors) return m.tell(outside, me, me, -2, int64_t(address)), false;
    const Tensor& there = m.launch.tensors[tensor];
    // A tensor's address is as well aligned as the CPU's.
    const int64_t first = (tensor + 1) << SLOT | int64_t(1) << (SLOT - 1) | (reinterpret_cast<uint64_t>(there.bytes) & 255);
    place = {there.bytes, m.cells[tensor], int64_t(address) - first, there.granule, tensor};
    available = there.size;
  }
  if (address % size) return m.tell(MISALIGNED, me, me, place.tensor, place.offset), false;
  if (place.offset < 0 || place.offset + size > available) return m.tell(outside, me, me, place.tensor, place.offset), false;
  return true;
}

template <bool STORE, bool SHARED_MEMORY> void access(Machine& m, Warp& warp, const Instruction& in, uint32_t lanes) {
  const int64_t size = in.width * in.count;
  uint64_t address[LANES];
  bool all_same = true;
  const int first_lane = __builtin_ctz(lanes), last_lane = 31 - __builtin_clz(lanes);
  for (int l = 0; l < LANES; ++l) {
    address[l] = in.offset;
    if (in.base >= 0) address[l] += SHARED_MEMORY ? warp.of<uint32_t>(in.base)[l] : warp.of<uint64_t>(in.base)[l];
    all_same &= !(lanes >> l & 1) || address[l] == address[first_lane];
  }
  for (uint32_t left = lanes; left; left &= left - 1) {
    const int l = __builtin_ctz(left);
    const Access me = m.access(warp, in, l, SHARED_MEMORY);
    Place place;
    if (!find(m, me, address[l], size, STORE, SHARED_MEMORY, place)) {
      for (int64_t i = 0; !STORE && i < in.count; ++i) put(warp, in.registers[i], in.data_width, l, ~uint64_t(0));
      continue;
    }
    uint8_t data[32], *there = place.bytes + place.offset;
    if (!SHARED_MEMORY && m.clock) m.clock->touch(place.bytes, place.offset, size);
    if (STORE)
      for (int64_t i = 0; i < in.count; ++i) {
        const uint64_t value = get(warp, in.registers[i], in.data_width, l);
        std::memcpy(data + i * in.width, &value, in.width);
      }
    const int64_t step = int64_t(1) << place.granule;
    for (int64_t at = place.offset & -step; at < place.offset + size && !m.clock; at += step) {  // races are no matter of time
      if (!STORE && all_same && l != first_lane && l != last_lane) break;  // two readers are as good as 32
      Cell& cell = place.cells[at >> place.granule];
      if (STORE) {
        const int64_t first = std::max(at, place.offset), count = std::min(at + step, place.offset + size) - first;
        const bool is_new = SHARED_MEMORY && cell.write.program != me.program;
        const bool is_same = !is_new && !std::memcmp(place.bytes + first, data + (first - place.offset), count);
        on_write(m, cell, me, place.tensor, at, is_same);
      } else {
        if (SHARED_MEMORY && cell.write.program != me.program) m.tell(UNINITIALISED, me, me, -1, at);
        on_read(m, cell, me, place.tensor, at);
      }
    }
    if (STORE) {
      std::memcpy(there, data, size);
      continue;
    }
    for (int64_t i = 0; i < in.count; ++i, there += in.width) {
      uint64_t value = 0;
      std::memcpy(&value, there, in.width);
      const uint64_t poison = 0x0101010101010101u * POISON >> (64 - 8 * in.width);
      if (!SHARED_MEMORY && in.width >= 4 && value == poison) m.tell(UNINITIALISED, me, me, place.tensor, place.offset);
      if (in.registers[i] >= 0) put(warp, in.registers[i], in.data_width, l, extended(value, in));
    }
  }
}

}  // namespace

void load_global(Machine& m, Warp& w, const Instruction& in, uint32_t lanes) { access<false, false>(m, w, in, lanes); }
void store_global(Machine& m, Warp& w, const Instruction& in, uint32_t lanes) { access<true, false>(m, w, in, lanes); }
void load_shared(Machine& m, Warp& w, const Instruction& in, uint32_t lanes) { access<false, true>(m, w, in, lanes); }
void store_shared(Machine& m, Warp& w, const Instruction& in, uint32_t lanes) { access<true, true>(m, w, in, lanes); }

void load_parameter(Machine& m, Warp& warp, const Instruction& in, uint32_t lanes) {
  uint64_t value = 0;
  std::memcpy(&value, m.launch.parameters + in.offset, in.width);
  value = extended(value, in);
  for (int l = 0; l < LANES; ++l)
    if (lanes >> l & 1) put(warp, in.registers[0], in.data_width, l, value);
}

// A matrix of 8x8 numbers of 16 bits, or `count` of them: lane `8 * i + r` has the address of row r of matrix i, and lane l
// holds numbers 2 * (l % 4) and the next one of row l / 4. As an access of 4 bytes by each lane.
template <bool STORE> void matrix(Machine& m, Warp& warp, const Instruction& in, uint32_t lanes) {
  uint32_t rows[LANES];
  for (int l = 0; l < LANES; ++l) rows[l] = (in.base >= 0 ? warp.of<uint32_t>(in.base)[l] : 0) + uint32_t(in.offset);
  for (int64_t i = 0; i < in.count; ++i) {
    uint32_t* const addresses = warp.of<uint32_t>(in.registers[5]);  // a register for this alone
    for (int l = 0; l < LANES; ++l) addresses[l] = rows[8 * i + l / 4] + 4 * (l % 4);
    Instruction one = in;
    one.base = in.registers[5], one.offset = 0, one.width = one.data_width = 4, one.count = 1, one.is_signed = 0;
    one.registers[0] = in.registers[i];
    access<STORE, true>(m, warp, one, lanes);
  }
}
void load_matrix(Machine& m, Warp& w, const Instruction& in, uint32_t lanes) { matrix<false>(m, w, in, lanes); }
void store_matrix(Machine& m, Warp& w, const Instruction& in, uint32_t lanes) { matrix<true>(m, w, in, lanes); }

// ---- order

Machine::Machine(Launch& launch)
    : launch(launch), clock(launch.timing ? new Clock(launch) : nullptr),
      random(0x9E3779B97F4A7C15u * uint64_t(launch.seed + 1)), converges(!launch.seed) {
  for (int64_t i = 0; i < launch.num_tensors; ++i)  // of untouched pages nothing is made
    cells.push_back(static_cast<Cell*>(std::calloc((launch.tensors[i].size >> launch.tensors[i].granule) + 1, sizeof(Cell))));
}

Machine::~Machine() {
  for (Cell* each : cells) std::free(each);
}

void Machine::tell(Kind kind, const Access& first, const Access& second, int64_t tensor, int64_t offset) {
  Finding& finding = found[{kind, first.at, second.at, tensor}];
  if (!finding.count++)
    finding = {kind, 1, first.at, second.at, int64_t(first.program) - 1, first.thread, int64_t(second.program) - 1,
               second.thread, tensor, offset};
}

void Machine::begin(Program& program, uint32_t number) {
  const int64_t *grid = launch.grid, shared = (launch.shared >> launch.shared_granule) + 1;
  program.number = number, program.epochs[0] = program.epochs[1] = 0, program.live = launch.threads, program.waiting = 0;
  program.x = number % grid[0], program.y = number / grid[0] % grid[1], program.z = number / grid[0] / grid[1];
  program.shared.assign(launch.shared + 1, POISON);
  program.cells.assign(shared, Cell());
  program.warps.resize(launch.threads / LANES);
  for (Warp& warp : program.warps) {
    warp.number = &warp - program.warps.data(), warp.alive = ALL, warp.epochs[0] = warp.epochs[1] = 0;
    warp.parts.assign(1, Part{ALL, 0, RUNS});
    const bool is_new = warp.registers.empty();  // else constants are there
    warp.registers.resize(launch.num_registers * LANES);
    const int64_t values[] = {0, program.x, program.y, program.z, grid[0], grid[1], grid[2]};
    for (int l = 0; l < LANES; ++l) {
      for (int64_t i = 0; i < NUM_SPECIAL; ++i) put(warp, i, 4, l, i == THREAD ? warp.number * LANES + l : values[i]);
      for (int64_t i = 0; is_new && i < launch.num_constants; ++i)
        put(warp, launch.constants[i].index, launch.constants[i].width, l, launch.constants[i].value);
    }
  }
  if (clock) clock->begin(program);
}

uint32_t active(Warp& warp, const Instruction& in, uint32_t lanes) {
  return in.guard < 0 ? lanes : lanes & (in.negated ? ~warp.bits(in.guard) : warp.bits(in.guard));
}

// Runs a part of a warp until it waits, ends or has run so many instructions.
void Machine::run_part(Warp& warp, size_t number, int64_t budget) {
  while (budget-- > 0) {
    const Part part = warp.parts[number];
    const Instruction& in = launch.code[part.at];
    const Operation& operation = OPERATIONS[in.operation];
    const uint32_t lanes = active(warp, in, part.lanes);
    const Access me = access(warp, in, lanes ? __builtin_ctz(lanes) : 0);
    if (++launch.instructions > launch.limit) tell(ENDLESS, me, me, -1, 0), throw Stop("endless");
    int64_t& at = warp.parts[number].at;
    if (!lanes) {
      ++at;
      continue;
    }
    switch (operation.role) {
      case PLAIN: operation.run(*this, warp, in, lanes), ++at; break;
      case BRANCH:
        if (lanes == part.lanes) {
          at = in.target;
          break;
        }
        ++at, warp.parts[number].lanes = part.lanes & ~lanes;
        warp.parts.push_back({lanes, in.target, RUNS});
        if (!converges && draw() % 2) std::swap(warp.parts[number], warp.parts.back());
        break;
      case EXIT:
        program->live -= __builtin_popcount(lanes), warp.alive &= ~lanes;
        if (lanes == part.lanes) return void(warp.parts.erase(warp.parts.begin() + number));
        ++at, warp.parts[number].lanes = part.lanes & ~lanes;
        break;
      default:
        if (lanes != part.lanes) {  // the others go on
          warp.parts[number].lanes = lanes;
          warp.parts.push_back({part.lanes & ~lanes, part.at + 1, RUNS});
        }
        if (operation.role == BARRIER) {
          warp.parts[number].state = AT_BARRIER, program->waiting += __builtin_popcount(lanes);
          return;
        }
        const uint32_t members = warp.of<uint32_t>(in.registers[4])[__builtin_ctz(lanes)] & warp.alive;
        if (lanes & ~members) tell(ABSENT_LANE, me, me, -1, 0);
        warp.parts[number].state = AT_SYNC;
        uint32_t here = 0;
        for (const Part& each : warp.parts)
          if (each.at == part.at && each.state == AT_SYNC) here |= each.lanes;
        if (members & ~here) return;
        for (size_t i = warp.parts.size(); i-- > 0;)
          if (i != number && warp.parts[i].at == part.at && warp.parts[i].state == AT_SYNC)
            warp.parts.erase(warp.parts.begin() + i), number -= i < number;
        if (operation.role != WARP_BARRIER) operation.run(*this, warp, in, here);
        else if (here == warp.alive) ++warp.epochs[1], warp.epochs[0] += in.is_asked;
        warp.parts[number] = {here, part.at + 1, RUNS};
    }
    if (converges && warp.parts.size() > 1) return;
  }
}

void merge(Warp& warp) {
  std::vector<Part>& parts = warp.parts;
  for (size_t a = 0; a < parts.size(); ++a)
    for (size_t b = parts.size() - 1; b > a; --b)
      if (parts[a].at == parts[b].at && parts[a].state == parts[b].state) {
        parts[a].lanes |= parts[b].lanes;
        parts.erase(parts.begin() + b);
      }
}

size_t lowest(const Warp& warp) {  // the part that goes on; the number of parts if all wait
  size_t next = warp.parts.size();
  for (size_t i = 0; i < warp.parts.size(); ++i)
    if (warp.parts[i].state == RUNS && (next == warp.parts.size() || warp.parts[i].at < warp.parts[next].at)) next = i;
  return next;
}

// The same of a program whose time is modelled: the next instruction of the warp that may issue it first.
bool Machine::timed_turn(Program& of) {
  program = &of;
  Warp* const warp = clock->first(of);
  if (!warp) return false;
  merge(*warp);
  const size_t part = lowest(*warp);
  const Instruction& in = launch.code[warp->parts[part].at];
  const uint32_t lanes = active(*warp, in, warp->parts[part].lanes);
  run_part(*warp, part, 1);
  clock->issued(*warp, in, lanes, lanes && OPERATIONS[in.operation].role == BRANCH);
  return true;
}

// One turn of a program; false, if nothing could run.
bool Machine::turn(Program& of) {
  constexpr int64_t QUANTUM = 32;
  program = &of;
  bool any = false;
  if (!converges) {
    std::vector<std::pair<Warp*, size_t>> ready;
    for (Warp& warp : of.warps)
      for (size_t i = 0; i < warp.parts.size(); ++i)
        if (warp.parts[i].state == RUNS) ready.push_back({&warp, i});
    if (ready.empty()) return false;
    const auto [warp, part] = ready[draw() % ready.size()];
    run_part(*warp, part, draw() % 4 ? launch.limit : 1 + draw() % QUANTUM);  // mostly as far as it can
    return true;
  }
  for (Warp& warp : of.warps) {
    const int64_t end = launch.instructions + QUANTUM;
    while (launch.instructions < end) {
      merge(warp);
      const size_t next = lowest(warp);
      if (next == warp.parts.size()) break;
      run_part(warp, next, end - launch.instructions), any = true;
    }
  }
  return any;
}

// Lets threads go on when all that live are at a barrier.
bool Machine::pass_barrier(Program& of) {
  if (!of.waiting || of.waiting != of.live) return false;
  program = &of;
  const Part* first = nullptr;
  for (Warp& warp : of.warps)
    for (const Part& part : warp.parts) {
      first = first ? first : &part;
      Access there = access(warp, launch.code[part.at], __builtin_ctz(part.lanes)), other = there;
      other.at = uint16_t(first->at);
      if (first->at != part.at) tell(MIXED_BARRIERS, other, there, -1, 0);
    }
  ++of.epochs[1], of.epochs[0] += launch.code[first->at].is_asked;
  for (Warp& warp : of.warps) {
    for (Part& part : warp.parts) part.state = RUNS, ++part.at;
    merge(warp);
  }
  if (clock) clock->pass_barrier(of);
  of.waiting = 0;
  return true;
}

void Machine::run() {
  const int64_t total = launch.grid[0] * launch.grid[1] * launch.grid[2];
  std::vector<uint32_t> order(total);
  for (int64_t i = 0; i < total; ++i) order[i] = uint32_t(i);
  for (int64_t i = total; !converges && i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
  std::vector<Program> running(std::min(total, launch.resident));
  int64_t next = 0, left = total;
  for (size_t i = 0; left; i = converges ? (i + 1) % running.size() : draw() % running.size()) {
    Program& one = running[i];
    if (!one.live) {
      if (next == total) continue;
      begin(one, order[next++]);
    }
    if (!(clock ? timed_turn(one) : turn(one)) && !pass_barrier(one)) {
      for (Warp& warp : one.warps)
        for (const Part& part : warp.parts) {
          const Access where = access(warp, launch.code[part.at], __builtin_ctz(part.lanes));
          tell(DEADLOCK, where, where, -1, part.lanes);
        }
      throw Stop("deadlock");
    }
    left -= !one.live;
    if (clock && !one.live) clock->end();
  }
}

}  // namespace ptx

extern "C" {

// A line for each instruction: its name and its operands.
const char* ptx_operations() {
  static std::string text;
  for (int64_t i = text.empty() ? 0 : ptx::NUM_OPERATIONS; i < ptx::NUM_OPERATIONS; ++i)
    text += std::string(ptx::OPERATIONS[i].name) + " " + ptx::OPERATIONS[i].operands + "\n";
  return text.c_str();
}

void ptx_run(ptx::Launch* launch) {
  ptx::Machine machine(*launch);
  try {
    machine.run();
  } catch (const ptx::Stop&) {  // it is told why
  }
  for (const auto& [key, finding] : machine.found)
    if (launch->num_findings < launch->room) launch->findings[launch->num_findings++] = finding;
}
}
