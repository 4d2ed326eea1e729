// Numbers, and tiles of them for the tensor cores: what several kernels share.

using bf16 = unsigned short;

__host__ __device__ constexpr int up(int x, int m) { return (x + m - 1) / m * m; }
__host__ __device__ constexpr int larger(int x, int y) { return x > y ? x : y; }

// Rows of shared memory lie an odd number of 16 bytes apart, so that eight of them meet in no bank.
__host__ __device__ constexpr int apart(int x) { return up(x, 16) + 8; }

// A weight of K inputs and N outputs, packed as the tensor cores take it (`pack` in kernels/weights.py): slabs of 16
// inputs, each of tiles of 8 outputs.
template <int K, int N>
struct Weight {
    static constexpr int slabs = up(K, 16) / 16, tiles = up(N, 8) / 8, size = slabs * tiles * 32;
};

__device__ inline float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ inline float sigmoid(float x) { return __fdividef(1, 1 + __expf(-x)); }
__device__ inline float hyperbolic(float x) { return 1 - __fdividef(2, 1 + __expf(2 * x)); }
__device__ inline float softplus(float x) { return fmaxf(x, 0.f) + __logf(1 + __expf(-fabsf(x))); }
__device__ inline float elu(float x) { return x > 0 ? x : __expf(x) - 1; }
__device__ inline float elu_slope(float y) { return fminf(y, 0.f) + 1; }

#ifndef ON_CPU  // tests emulate these on a CPU
__device__ inline unsigned rounded(float x, float y) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}

__device__ inline void multiply_tile(float (&sum)[4], const unsigned (&x)[4], uint2 w) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(w.x), "r"(w.y));
}
#endif

extern __shared__ uint4 memory[];
