// Rows of a warp. A warp takes 16 rows through one layer after another and waits for no other: a thread has of a layer's
// outputs just what the tensor cores will want of it as the next one's inputs, and keeps them in shared memory that is
// its own.
//
// A thread has numbers of two rows, `half` 0 and 1. Of a tile of 8 columns it has two neighbours; columns are dealt to
// four tiles such that the thread's are eight neighbours (`dealt` in kernels/weights.py), 16 bytes to load or to store.
//
// Compiled for one set of sizes: D belief, Z state, A actions, N units of the world model's layers, M of the heads', H
// steps of n rows.

constexpr int ZP = up(Z, 8), AP = up(A, 8), F = D + ZP;  // states and actions fill tiles
constexpr int TD = D / 8, TN = N / 8, TM = M / 8, TZ = ZP / 8, TA = AP / 8, TF = TD + TZ;
static_assert(D % 8 == 0 && N % 8 == 0 && M % 8 == 0 && Z % 2 == 0, "rows of whole 16 bytes");

// The first of the two columns that this thread has of one of T tiles.
template <int T>
__device__ int column(int tile) {
    const int q = threadIdx.x % 4;
    return tile < T / 4 * 4 ? tile / 4 * 32 + q * 8 + tile % 4 * 2 : tile * 8 + q * 2;
}

// f(first, y) for four tiles of T at a time; the last may be fewer, and what it lacks is zero.
template <int T, class Do>
__device__ void by_fours(Do f) {
#pragma unroll
    for (int first = 0; first < T; first += 4) {
        Tiles<4> y = {};
        f(first, y);
    }
}

// Which rows of an array this thread has. One beyond the last is the last once more: it writes the same.
struct Place {
    int seed = blockIdx.y, first, total;
    __device__ Place(int total)
        : first((blockIdx.x * WARPS + threadIdx.x / 32) * 16 + threadIdx.x % 32 / 4), total(total) {}
    __device__ bool has(int half) const { return first + half * 8 < total; }
    __device__ int row(int half) const { return min(first + half * 8, total - 1); }

    // The warp's rows of an array (.., n, width) are soon in the GPU's cache.
    template <class X>
    __device__ void expect(const X* from, int width) const {
        const int rows = min(16, total - first);
        if (n % 8 == 0 && threadIdx.x % 32 == 0 && rows > 0) prefetch(from + first * width, rows * width * sizeof(X));
    }

    // Four tiles of T, of rows of this width. What this kernel WROTE is not in the cache for constants.
    template <int T, bool WROTE = false>
    __device__ void load(Tiles<4>& y, int first, const bf16* from, int width) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const bf16* own = from + row(half) * width;
            if (first + 4 <= T) {
                const uint4* place = (const uint4*)(own + column<T>(first));
                const uint4 four = WROTE ? *place : __ldg(place);
                y[0][half] = four.x, y[1][half] = four.y, y[2][half] = four.z, y[3][half] = four.w;
            } else
#pragma unroll
                for (int j = 0; j < T - first; j++) {
                    const unsigned* place = (const unsigned*)(own + column<T>(first + j));
                    y[j][half] = WROTE ? *place : __ldg(place);
                }
        }
    }

    // ONCE: where it was read before.
    template <int T, bool ONCE = false>
    __device__ void store(const Tiles<4>& y, int first, bf16* to, int width) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (ONCE && !has(half)) continue;
            bf16* own = to + row(half) * width;
            if (first + 4 <= T)
                *(uint4*)(own + column<T>(first)) = uint4{y[0][half], y[1][half], y[2][half], y[3][half]};
            else
#pragma unroll
                for (int j = 0; j < T - first; j++) *(unsigned*)(own + column<T>(first + j)) = y[j][half];
        }
    }
};

// A thread's own numbers of T tiles, rounded, as the tensor cores take them: two tiles are a slab.
template <int T>
struct Rows {
    static constexpr int slabs = (T + 1) / 2, size = slabs * 16 * CREW;
    uint4* own;
    __device__ Rows(void* place) : own((uint4*)place + threadIdx.x) {}

    // Four tiles from an even one on, as far as there is room.
    __device__ void put(const Tiles<4>& y, int first) const {
        own[first / 2 * CREW] = uint4{y[0][0], y[0][1], y[1][0], y[1][1]};
        if (first / 2 + 1 < slabs) own[(first / 2 + 1) * CREW] = uint4{y[2][0], y[2][1], y[3][0], y[3][1]};
    }

    __device__ void get(Tiles<4>& y, int first) const {
        const uint4 a = own[first / 2 * CREW];
        y[0][0] = a.x, y[0][1] = a.y, y[1][0] = a.z, y[1][1] = a.w;
        if (first / 2 + 1 >= slabs) return;
        const uint4 b = own[(first / 2 + 1) * CREW];
        y[2][0] = b.x, y[2][1] = b.y, y[3][0] = b.z, y[3][1] = b.w;
    }

    // One tile. Zeros of a weight meet what fills up the last slab, which must be a number.
    __device__ void put_tile(int tile, unsigned row_0, unsigned row_8) const {
        ((uint2*)(own + tile / 2 * CREW))[tile % 2] = uint2{row_0, row_8};
    }
};

// The same, unrounded.
template <int T>
struct Exact {
    static constexpr int size = T * 16 * CREW;
    float4* own;
    __device__ Exact(void* place) : own((float4*)place + threadIdx.x) {}
    __device__ void put(int tile, const float (&x)[4]) const { own[tile * CREW] = float4{x[0], x[1], x[2], x[3]}; }
    __device__ void get(int tile, float (&x)[4]) const {
        const float4 y = own[tile * CREW];
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    }
};

// f(tile, half, e) with e = 2 half and 2 half + 1 the places of a pair among a tile's sums.
template <int T, class Do>
__device__ void each(Do f) {
#pragma unroll
    for (int j = 0; j < T; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) f(j, half, 2 * half);
}

template <int T>
__device__ void clear(Sums<T>& sums) {
    each<T>([&](int j, int half, int e) { sums[j][e] = sums[j][e + 1] = 0; });
}

// Outputs of a layer from its products, as the next one's inputs, and, where `to` is given, to the GPU's memory. The
// bias comes last: sums that began with it would be moved at each step of the product's loop.
template <int T, class To>
__device__ void elu(const Place& at, const Sums<T>& sums, const float* bias, const To& y, bf16* to) {
    by_fours<T>([&](int first, Tiles<4>& out) {
#pragma unroll
        for (int j = 0; j < 4 && first + j < T; j++) {
            const float2 b = *(const float2*)(bias + column<T>(first + j));
#pragma unroll
            for (int half = 0; half < 2; half++)
                out[j][half] = rounded(elu(sums[first + j][2 * half] + b.x), elu(sums[first + j][2 * half + 1] + b.y));
        }
        y.put(out, first);
        if (to) at.store<T>(out, first, to, T * 8);
    });
}

// Four tiles of a layer's outputs turn into the gradient of its sums, given that of its outputs.
template <int T>
__device__ void blame_sums(Tiles<4>& y, int first, const Sums<T>& by) {
#pragma unroll
    for (int j = 0; j < 4 && first + j < T; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float(&b)[4] = by[first + j];
            y[j][half] = rounded(b[2 * half] * elu_slope(low(y[j][half])), b[2 * half + 1] * elu_slope(high(y[j][half])));
        }
}

// Over the threads that have numbers of the same rows.
__device__ inline float sum_of_four(float x) {
#pragma unroll
    for (int i = 1; i < 4; i *= 2)
        x += __uint_as_float(__shfl_sync(~0u, __float_as_uint(x), threadIdx.x % 32 ^ i));
    return x;
}

// Biases, or whatever all rows need, from the GPU's memory; all of a block's threads take part.
__device__ inline void copy(float* to, const float* from, int size) {
    for (int i = threadIdx.x; i < size; i += THREADS) to[i] = from[i];
}
