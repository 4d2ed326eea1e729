// Enough of CUDA to run the kernels' own text on a CPU: a thread for each of a block's, one block, or one cluster of
// blocks, after another. A warp's threads wait for each other wherever they exchange what they have; a tile's product is
// a plain sum here, over what the warp's threads hold of it.

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
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

thread_local Index threadIdx, blockIdx;

struct Barrier {
    pthread_barrier_t all;
    Barrier(int threads) { pthread_barrier_init(&all, nullptr, threads); }
    ~Barrier() { pthread_barrier_destroy(&all); }
    void wait() { pthread_barrier_wait(&all); }
};

struct Warp {
    Barrier barrier{32};
    unsigned rows[32][4], value[32];
    uint2 weight[32];
};

// Behind the shared memory that was asked for lies some that nobody may write to.
struct Block {
    static constexpr int fence = 4096;
    Barrier barrier;
    std::vector<Warp> warps;
    std::vector<uint4> memory;
    std::mutex mutex;
    std::condition_variable opened;
    Block(int threads, int bytes) : barrier(threads), warps(threads / 32), memory(bytes / 16 + fence, uint4{7, 7, 7, 7}) {}
    bool whole() const {
        return std::all_of(memory.end() - fence, memory.end(), [](uint4 x) { return x.x + x.y + x.z + x.w == 28; });
    }
};

// Threads arrive, do other things, and only then wait for all others' arrival.
struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    std::mutex mutex;
    std::condition_variable changed;
    int missing, threads, phase = 0;
};

thread_local Cluster* cluster;
thread_local Block* block;
thread_local uint4* memory;
thread_local int arrived;

using std::max;
using std::min;
inline void __syncthreads() { block->barrier.wait(); }

inline void arrive() {
    std::lock_guard<std::mutex> lock(cluster->mutex);
    arrived = cluster->phase;
    if (--cluster->missing == 0) cluster->missing = cluster->threads, cluster->phase++, cluster->changed.notify_all();
}

inline void wait() {
    std::unique_lock<std::mutex> lock(cluster->mutex);
    cluster->changed.wait(lock, [] { return cluster->phase != arrived; });
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

inline void __syncwarp() { block->warps[threadIdx.x / 32].barrier.wait(); }

// Opens, turn after turn, once as many have arrived as it counts. All of a block's have one lock.
struct Gate { short count, missing; int turns; };

inline void make(Gate* gate, int count) { *gate = {(short)count, (short)count, 0}; }
inline void publish_gates() {}

inline void arrive(Gate* gate) {
    std::lock_guard<std::mutex> lock(block->mutex);
    if (--gate->missing == 0) gate->missing = gate->count, gate->turns++, block->opened.notify_all();
}

inline void pass(Gate* gate, int turn) {
    std::unique_lock<std::mutex> lock(block->mutex);
    block->opened.wait(lock, [&] { return gate->turns % 2 != turn; });
}

inline bool open(Gate* gate, int turn) {
    std::lock_guard<std::mutex> lock(block->mutex);
    return gate->turns % 2 != turn;
}

inline void bring(Gate* gate, void* to, const void* from, int bytes) {
    memcpy(to, from, bytes);
    arrive(gate);
}

inline void prefetch(const void*, int) {}
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

// One cluster of blocks after another; whether all kept to their memory.
template <class... Arguments>
bool run(void (*kernel)(Arguments...), int size, const int (&grid)[3], int threads, int bytes, Arguments... arguments) {
    bool whole = true;
    for (int first = 0; first < grid[0] * grid[1] * grid[2]; first += size) {
        Cluster now;
        now.threads = now.missing = size * threads;
        for (int i = 0; i < size; i++) now.blocks.push_back(std::make_unique<Block>(threads, bytes));
        std::vector<std::thread> all;
        for (int i = 0; i < size * threads; i++)
            all.emplace_back([=, &now, &grid] {
                const int place = first + i / threads;
                cluster = &now, block = now.blocks[i / threads].get(), memory = block->memory.data();
                threadIdx = {i % threads, 0, 0};
                blockIdx = {place % grid[0], place / grid[0] % grid[1], place / grid[0] / grid[1]};
                kernel(arguments...);
            });
        for (auto& thread : all) thread.join();
        for (auto& block : now.blocks) whole = whole && block->whole();
    }
    return whole;
}

template <class... Arguments, size_t... I>
bool start(void (*kernel)(Arguments...), int size, const int (&grid)[3], int threads, int bytes, void** addresses,
           std::index_sequence<I...>) {
    return run(kernel, size, grid, threads, bytes, (Arguments)addresses[I]...);
}

template <class... Arguments>
bool start(void (*kernel)(Arguments...), int size, const int (&grid)[3], int threads, int bytes, void** addresses) {
    return start(kernel, size, grid, threads, bytes, addresses, std::index_sequence_for<Arguments...>());
}

template <class T> T here(T x) { return x; }

template <class T> const T* of_block(const T* place, int number) {
    const auto& blocks = cluster->blocks;
    return (const T*)((char*)blocks[number % blocks.size()]->memory.data() + ((char*)place - (char*)memory));
}

// A copy comes as late as it may, and from the first on nobody finds a number in its place.
struct Copy { void* to; const void* from; int bytes; };
thread_local std::vector<std::vector<Copy>> copies(1);

template <int BYTES> void copy_async(void* to, const void* from, bool valid) {
    memset(to, 0xff, BYTES);
    copies.back().push_back({to, valid ? from : nullptr, BYTES});
}

inline void commit() { copies.emplace_back(); }

template <int LEFT> void wait_copies() {
    for (; copies.size() > LEFT + 1; copies.erase(copies.begin()))
        for (const Copy& copy : copies.front())
            copy.from ? memcpy(copy.to, copy.from, copy.bytes) : memset(copy.to, 0, copy.bytes);
}
