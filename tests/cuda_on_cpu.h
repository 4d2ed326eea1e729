// Enough of CUDA to run the kernels' own text on a CPU: one block, or one cluster of blocks, after another, its threads
// taking turns on one thread of the CPU's. Each goes on until it has to wait for others, so that none is ahead of what
// it waits for by chance. A tile's product is a plain sum here, over what the warp's threads hold of it. Shared memory
// begins as no numbers, and copies come as late as they may.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#define ON_CPU
#define __device__
#define __host__
#define __global__
#define __shared__
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct Index { int x, y, z; };

struct Copy { void* to; const void* from; int bytes; };

struct Barrier {
    int threads, missing, passed = 0;
    Barrier(int threads) : threads(threads), missing(threads) {}
    void arrive() {
        if (--missing == 0) missing = threads, passed++;
    }
    void wait();
};

struct Warp {
    Barrier barrier{32};
    unsigned rows[32][4], value[32];
    uint2 weight[32];
};

// Opens, turn after turn, once as many have arrived as it counts.
struct Gate { short count, missing; int turns; };

// Behind the shared memory that was asked for lies some that nobody may write to.
struct Block {
    static constexpr int fence = 4096;
    Barrier barrier;
    std::vector<Warp> warps;
    std::vector<uint4> memory;
    std::map<Gate*, Copy> under_way;
    Block(int threads, int bytes) : barrier(threads), warps(threads / 32), memory(bytes / 16, uint4{~0u, ~0u, ~0u, ~0u}) {
        memory.resize(bytes / 16 + fence, uint4{7, 7, 7, 7});
    }
    bool whole() const {
        return std::all_of(memory.end() - fence, memory.end(), [](uint4 x) { return x.x + x.y + x.z + x.w == 28; });
    }
};

// Threads arrive, do other things, and only then wait for all others' arrival.
struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    Barrier barrier;
    Cluster(int blocks, int threads) : barrier(blocks * threads) {}
};

struct Thread {
    static constexpr int STACK = 1 << 17;
    Index number, place;
    Block* block;
    int arrived = 0;
    std::vector<std::vector<Copy>> copies{1};  // groups of them, the last one not yet whole
    std::unique_ptr<char[]> stack{new char[STACK]};
    ucontext_t start;
    jmp_buf left;
    bool begun = false, done = false;
};

// What the thread finds whose turn it is.
Thread* now;
Index threadIdx, blockIdx;
Cluster* cluster;
Block* block;
uint4* memory;
jmp_buf turns;

template <class Condition> void until(Condition holds) {
    while (!holds())
        if (!_setjmp(now->left)) _longjmp(turns, 1);
}

inline void Barrier::wait() {
    const int turn = passed;
    arrive();
    until([&] { return passed != turn; });
}

using std::max;
using std::min;
inline void __syncthreads() { block->barrier.wait(); }

inline void arrive() { now->arrived = cluster->barrier.passed, cluster->barrier.arrive(); }

inline void wait() {
    until([] { return cluster->barrier.passed != now->arrived; });
}

inline void send(unsigned short* place, int to, uint4 x) {
    memcpy((char*)cluster->blocks[to]->memory.data() + ((char*)place - (char*)memory), &x, 16);
}

inline unsigned __shfl_sync(unsigned, unsigned x, int lane) {
    Warp& warp = block->warps[threadIdx.x / 32];
    warp.value[threadIdx.x % 32] = x;
    warp.barrier.wait();
    x = warp.value[lane];
    warp.barrier.wait();
    return x;
}

inline int __any_sync(unsigned, bool x) {
    Warp& warp = block->warps[threadIdx.x / 32];
    warp.value[threadIdx.x % 32] = x;
    warp.barrier.wait();
    const bool any = std::any_of(warp.value, warp.value + 32, [](unsigned y) { return y; });
    warp.barrier.wait();
    return any;
}

inline void make(Gate* gate, int count) { *gate = {(short)count, (short)count, 0}; }
inline void publish_gates() {}

inline void arrive(Gate* gate) {
    if (--gate->missing == 0) gate->missing = gate->count, gate->turns++;
}

inline bool open(Gate* gate, int turn) { return gate->turns % 2 != turn; }

// What is on its way comes when somebody has to wait for it.
inline void pass(Gate* gate, int turn) {
    until([&] {
        const auto copy = block->under_way.find(gate);
        if (copy != block->under_way.end()) {
            memcpy(copy->second.to, copy->second.from, copy->second.bytes);
            block->under_way.erase(copy), arrive(gate);
        }
        return open(gate, turn);
    });
}

inline bool in_whole(const void* place, int bytes) { return (uintptr_t)place % 16 == 0 && bytes % 16 == 0; }

inline void bring(Gate* gate, void* to, const void* from, int bytes) {
    assert(in_whole(to, bytes) && in_whole(from, bytes) && !block->under_way.count(gate));
    memset(to, 0xff, bytes), block->under_way[gate] = {to, from, bytes};
}

inline void prefetch(const void* from, int bytes) { assert(in_whole(from, bytes)); }
inline uint2 ask_near(const uint2* x) { return *x; }
template <class T> T ask(const T* x) { return *x; }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
template <class T> T __ldg(const T* x) { return *x; }

inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}

inline unsigned to_bf16(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline unsigned rounded(float x, float y) { return to_bf16(x) | to_bf16(y) << 16; }

// As ldmatrix does: of 16 rows and 16 columns, what this thread has to hold.
inline void load_rows(unsigned (&a)[4], const unsigned short* x, int stride) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) memcpy(a + i, x + (lane / 4 + i % 2 * 8) * stride + lane % 4 * 2 + i / 2 * 8, 4);
}

inline void multiply_tile(float (&sum)[4], const unsigned (&a)[4], uint2 w) {
    const int lane = threadIdx.x % 32;
    Warp& warp = block->warps[threadIdx.x / 32];
    memcpy(warp.rows[lane], a, 16), warp.weight[lane] = w;
    warp.barrier.wait();
    auto of = [](unsigned pair, int k) { return __uint_as_float(k % 2 ? pair & 0xffff0000u : pair << 16); };
    for (int e = 0; e < 4; e++)
        for (int k = 0; k < 16; k++) {
            const uint2 other = warp.weight[(lane % 4 * 2 + e % 2) * 4 + k % 8 / 2];
            sum[e] += of(warp.rows[lane / 4 * 4 + k % 8 / 2][e / 2 + k / 8 * 2], k) * of(k < 8 ? other.x : other.y, k);
        }
    warp.barrier.wait();
}

template <int STAGE, int XS, int SS, int XT, int ST>
void multiply_turned(float (&sums)[XT][ST][4], const unsigned short* x, const unsigned short* s) {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < XT; i++)
        for (int j = 0; j < ST; j++)
            for (int e = 0; e < 4; e++)
                for (int row = 0; row < STAGE; row++)
                    sums[i][j][e] += __uint_as_float((unsigned)x[row * XS + i * 16 + e / 2 * 8 + lane / 4] << 16) *
                                     __uint_as_float((unsigned)s[row * SS + j * 8 + lane % 4 * 2 + e % 2] << 16);
}

// Every thread in turn, until all are done.
template <class Kernel> void take_turns(std::vector<Thread>& threads, Kernel& kernel) {
    static Kernel* own;
    own = &kernel;
    for (Thread& thread : threads) {
        getcontext(&thread.start);
        thread.start.uc_stack.ss_sp = thread.stack.get(), thread.start.uc_stack.ss_size = Thread::STACK;
        makecontext(&thread.start, [] { (*own)(), now->done = true, _longjmp(turns, 1); }, 0);
    }
    for (bool left = true; left;) {
        left = false;
        for (Thread& thread : threads) {
            if (thread.done) continue;
            left = true, now = &thread, threadIdx = thread.number, blockIdx = thread.place;
            block = thread.block, memory = block->memory.data();
            if (_setjmp(turns)) continue;
            if (thread.begun) _longjmp(thread.left, 1);
            thread.begun = true, setcontext(&thread.start);
        }
    }
}

// One cluster of blocks after another; whether all kept to their memory.
template <class... Arguments>
bool run(void (*kernel)(Arguments...), int size, const int* grid, int threads, int bytes, Arguments... arguments) {
    bool whole = true;
    auto call = [&] { kernel(arguments...); };
    for (int first = 0; first < grid[0] * grid[1] * grid[2]; first += size) {
        Cluster blocks(size, threads);
        std::vector<Thread> all(size * threads);
        for (int i = 0; i < size; i++) blocks.blocks.push_back(std::make_unique<Block>(threads, bytes));
        for (int i = 0; i < size * threads; i++) {
            const int place = first + i / threads;
            all[i].number = {i % threads, 0, 0}, all[i].block = blocks.blocks[i / threads].get();
            all[i].place = {place % grid[0], place / grid[0] % grid[1], place / grid[0] / grid[1]};
        }
        cluster = &blocks;
        take_turns(all, call);
        for (auto& one : blocks.blocks) whole = whole && one->whole();
    }
    return whole;
}

template <class... Arguments, size_t... I>
bool start(void (*kernel)(Arguments...), int size, const int* grid, int threads, int bytes, void** addresses,
           std::index_sequence<I...>) {
    return run(kernel, size, grid, threads, bytes, (Arguments)addresses[I]...);
}

template <class... Arguments>
bool start(void (*kernel)(Arguments...), int size, const int* grid, int threads, int bytes, void** addresses) {
    return start(kernel, size, grid, threads, bytes, addresses, std::index_sequence_for<Arguments...>());
}

template <class T> T here(T x) { return x; }

template <class T> const T* of_block(const T* place, int number) {
    return (const T*)((char*)cluster->blocks[number % cluster->blocks.size()]->memory.data() + ((char*)place - (char*)memory));
}

// A copy comes as late as it may, and from the first on nobody finds a number in its place.
template <int BYTES> void copy_async(void* to, const void* from, bool valid) {
    memset(to, 0xff, BYTES);
    now->copies.back().push_back({to, valid ? from : nullptr, BYTES});
}

inline void commit() { now->copies.emplace_back(); }

template <int LEFT> void wait_copies() {
    for (auto& copies = now->copies; copies.size() > LEFT + 1; copies.erase(copies.begin()))
        for (const Copy& copy : copies.front())
            copy.from ? memcpy(copy.to, copy.from, copy.bytes) : memset(copy.to, 0, copy.bytes);
}
