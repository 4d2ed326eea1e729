// The gradient of a layer's weight and bias: x^T s over all rows, x a layer's inputs and s the gradient of its sums,
// or, where they are SCALED, s times a number for each row. A block has half of the inputs and a share of the rows;
// what the shares sum up to, (SHARES, K + 1, M) with the bias last, is added up outside.
//
// Compiled for one set of sizes: K inputs and M outputs, ROWS_X rows of x of which the first SKIP do not count, ROWS_S
// of s.

using bf16 = unsigned short;

constexpr int COLUMNS = 5, THREADS = 2 * COLUMNS * 32, STAGE = 32;

__host__ __device__ constexpr int up(int x, int m) { return (x + m - 1) / m * m; }

// A one stands behind the inputs, so that the bias comes as one more of them.
constexpr int HALF = up(up(K + 1, 16) / 16, 2) / 2 * 16, XT = up(HALF, 32) / 32, ST = up(M, 8 * COLUMNS) / 8 / COLUMNS;
constexpr int XS = XT * 32 + 8, SS = ST * COLUMNS * 8 + 8 + ST * COLUMNS % 2 * 8;  // an odd number of 16 bytes
constexpr int X_MANY = K % 8 ? 2 : 8, X_STEPS = HALF / X_MANY, X_OWN = up(STAGE * X_STEPS, THREADS) / THREADS;
constexpr int S_STEPS = M / 8, S_OWN = up(STAGE * S_STEPS, THREADS) / THREADS;
constexpr int SHARE = up(up(ROWS_S, SHARES) / SHARES, STAGE);

__device__ inline float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

#ifndef ON_CPU  // tests emulate these on a CPU
__device__ inline unsigned rounded(float x, float y) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}

// sums += x^T s for a stage of rows, XT tiles of 16 inputs and ST of 8 outputs.
template <int STAGE, int XS, int SS, int XT, int ST>
__device__ void multiply_turned(float (&sums)[XT][ST][4], const bf16* x, const bf16* s) {
    const int lane = threadIdx.x % 32;
    const unsigned from_x =
        (unsigned)__cvta_generic_to_shared(x) + ((lane / 16 * 8 + lane % 8) * XS + lane / 8 % 2 * 8) * 2;
    const unsigned from_s = (unsigned)__cvta_generic_to_shared(s) + lane % 16 * SS * 2;
#pragma unroll
    for (int k = 0; k < STAGE; k += 16) {
        unsigned a[XT][4], b[ST][2];
#pragma unroll
        for (int i = 0; i < XT; i++)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3])
                         : "r"(from_x + (k * XS + i * 16) * 2));
#pragma unroll
        for (int j = 0; j < ST; j++)
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                         : "=r"(b[j][0]), "=r"(b[j][1])
                         : "r"(from_s + (k * SS + j * 8) * 2));
#pragma unroll
        for (int i = 0; i < XT; i++)
#pragma unroll
            for (int j = 0; j < ST; j++)
                asm volatile(
                    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                    "{%0,%1,%2,%3};"
                    : "+f"(sums[i][j][0]), "+f"(sums[i][j][1]), "+f"(sums[i][j][2]), "+f"(sums[i][j][3])
                    : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[j][0]), "r"(b[j][1]));
    }
}
#endif

extern __shared__ uint4 memory[];

// What a thread brings from the GPU's memory for the next stage while this one is multiplied.
struct Stage {
    unsigned x[X_OWN][X_MANY / 2];
    uint4 s[S_OWN];
    float scale[S_OWN];

    __device__ void ask(const bf16* from_x, const bf16* from_s, const float* scales, int row0, int column0) {
#pragma unroll
        for (int i = 0; i < X_OWN; i++) {
            const int at = threadIdx.x + i * THREADS, row = row0 + at / X_STEPS,
                      column = column0 + at % X_STEPS * X_MANY;
            const bf16* place = from_x + (long long)min(row, ROWS_S - 1) * K + min(column, K - X_MANY);
            if constexpr (X_MANY == 8) {
                const uint4 y = __ldg((const uint4*)place);
                x[i][0] = y.x, x[i][1] = y.y, x[i][2] = y.z, x[i][3] = y.w;
            } else
                x[i][0] = __ldg((const unsigned*)place);
        }
#pragma unroll
        for (int i = 0; i < S_OWN; i++) {
            const int at = threadIdx.x + i * THREADS, row = min(row0 + at / S_STEPS, ROWS_S - 1);
            s[i] = __ldg((const uint4*)(from_s + (long long)row * M + at % S_STEPS * 8));
            if constexpr (SCALED) scale[i] = __ldg(scales + row);
        }
    }

    __device__ void put(bf16* to_x, bf16* to_s, int row0, int column0) {
#pragma unroll
        for (int i = 0; i < X_OWN; i++) {
            const int at = threadIdx.x + i * THREADS, row = at / X_STEPS, column = at % X_STEPS * X_MANY;
            if (row >= STAGE) break;
            const int input = column0 + column;
            bf16* place = to_x + row * XS + column;
            if (input < K)
#pragma unroll
                for (int k = 0; k < X_MANY / 2; k++) ((unsigned*)place)[k] = x[i][k];
            else if (input == K)
                *place = 0x3f80;  // one
        }
#pragma unroll
        for (int i = 0; i < S_OWN; i++) {
            const int at = threadIdx.x + i * THREADS, row = at / S_STEPS;
            if (row >= STAGE) break;
            uint4 y = s[i];
            if constexpr (SCALED)
                y = uint4{rounded(scale[i] * low(y.x), scale[i] * high(y.x)),
                          rounded(scale[i] * low(y.y), scale[i] * high(y.y)),
                          rounded(scale[i] * low(y.z), scale[i] * high(y.z)),
                          rounded(scale[i] * low(y.w), scale[i] * high(y.w))};
            if (row0 + row >= ROWS_S) y = uint4{0, 0, 0, 0};
            *(uint4*)(to_s + row * SS + at % S_STEPS * 8) = y;
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    weigh(const bf16* x, const bf16* s, const float* scale, float* sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, share = blockIdx.x, seed = blockIdx.y,
              half = blockIdx.z;
    const int first = share * SHARE, last = min(first + SHARE, ROWS_S), input0 = half * HALF;
    const int own_x = warp / COLUMNS * XT * 16, own_s = warp % COLUMNS * ST * 8;
    bf16* buffer = (bf16*)memory;
    constexpr int size = STAGE * (XS + SS);
    for (int i = threadIdx.x; i < 2 * size / 8; i += THREADS) memory[i] = uint4{0, 0, 0, 0};
    __syncthreads();
    x += ((long long)seed * ROWS_X + SKIP) * K, s += (long long)seed * ROWS_S * M, scale += (long long)seed * ROWS_S;
    float total[XT][ST][4] = {};
    Stage stage;
    stage.ask(x, s, scale, first, input0);
    for (int row = first, turn = 0; row < last; row += STAGE, turn = !turn) {
        bf16 *to_x = buffer + turn * size, *to_s = to_x + STAGE * XS;
        stage.put(to_x, to_s, row, input0);
        __syncthreads();  // and all are done with the other buffer, two stages ago
        if (row + STAGE < last) stage.ask(x, s, scale, row + STAGE, input0);
        multiply_turned<STAGE, XS, SS>(total, to_x + own_x, to_s + own_s);
    }
    float* to = sums + ((long long)seed * SHARES + share) * (K + 1) * M;
    for (int i = 0; i < XT; i++)
        for (int j = 0; j < ST; j++)
            for (int e = 0; e < 4; e++) {
                const int own = own_x + i * 16 + e / 2 * 8 + lane / 4, input = input0 + own,
                          output = own_s + j * 8 + lane % 4 * 2 + e % 2;
                if (own < HALF && input <= K && output < M) to[input * M + output] = total[i][j][e];
            }
}
