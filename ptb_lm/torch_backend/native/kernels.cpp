// The parts of a training step that torch's own operations do slowly on a CPU: the recurrence of a layer of the
// LSTM or the Mogrifier, softmax cross-entropy, dropout's masks, the norm of the gradients, the update of the
// weights; and large products by OpenBLAS. ptb_lm/torch_backend/native compiles this file for the machine at hand
// and calls it; without a compiler, torch's operations compute the same.
//
// With AVX-512 the products of the recurrence are oneDNN's, through the "batch-reduce" product that torch exports
// for extensions (ATen/native/CPUBlas.h). They take float32, and bfloat16 with sums in float32, on AMX too.
// Without AVX-512 those of float32 are computed here, and there are none of bfloat16.
//
// Shapes: T = time steps, B = batch, P = steps of all samples, H = hidden units, G = 4 H, N = tokens, V =
// vocabulary. Gates lie in the order i, f, g, o along G. Sequences are packed as lstm_fused.py describes.
//
// Every element is computed by one thread in an order that does not depend on the number of threads, so that
// results are the same for any number. `multiply` is the exception: its order is OpenBLAS's. The caller checks
// sizes and types. An exception here ends the process, because it cannot leave a parallel region; `supported`
// shows beforehand that oneDNN's product throws none.

#include <omp.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace c10 {
struct BFloat16;
}

namespace at::native::cpublas {
// C[M, N] = A[M, K] @ B[K, N], or += where `add` is set. bfloat16's B lies in pairs of rows: [K / 2, N, 2].
void brgemm(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, bool add,
            const c10::BFloat16* A, const c10::BFloat16* B, float* C, bool in_pairs);
void brgemm(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, bool add, const float* A,
            const float* B, float* C, bool in_pairs);
void brgemm_release(bool in_pairs);
}  // namespace at::native::cpublas

namespace {

namespace cpublas = at::native::cpublas;

// Numbers of 32 bits in a vector of this processor. GCC splits some operations on wider vectors into single
// numbers.
#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
using Floats = float __attribute__((vector_size(4 * LANES)));
using Ints = int32_t __attribute__((vector_size(4 * LANES)));
using UInts = uint32_t __attribute__((vector_size(4 * LANES)));
using Halves = uint16_t __attribute__((vector_size(2 * LANES)));

struct bfloat16 {
  uint16_t bits;
};

// ---- numbers in and out of vectors ----

inline Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline Floats load(const bfloat16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return reinterpret_cast<Floats>(__builtin_convertvector(halves, UInts) << 16);
}

inline void store(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

inline void store(bfloat16* to, Floats x) {
  UInts bits = reinterpret_cast<UInts>(x);
  bits += 0x7fff + ((bits >> 16) & 1);  // to the nearest, ties to even
  bits = x != x ? UInts{} + 0x7fc00000 : bits;
  Halves halves = __builtin_convertvector(bits >> 16, Halves);
  std::memcpy(to, &halves, sizeof halves);
}

// The first `count` lanes; the others are zeros, or left alone.
template <class T>
inline Floats load(const T* from, int64_t count) {
  if (count >= LANES) return load(from);
  T some[LANES] = {};
  std::memcpy(some, from, count * sizeof(T));
  return load(some);
}

template <class T>
inline void store(T* to, Floats x, int64_t count) {
  if (count >= LANES) return store(to, x);
  T some[LANES];
  store(some, x);
  std::memcpy(to, some, count * sizeof(T));
}

inline Floats broadcast(float x) { return x - Floats{}; }  // x + 0 would be an addition, because of -0

inline float sum(Floats x) {
  float total = 0;
  for (int lane = 0; lane < LANES; ++lane) total += x[lane];
  return total;
}

inline float maximum(Floats x) {
  float largest = x[0];
  for (int lane = 1; lane < LANES; ++lane) largest = std::max(largest, x[lane]);
  return largest;
}

// ---- functions; NaN stays NaN ----

// e^x to 2 units in the last place: x = n ln 2 + r, and e^r by its Taylor polynomial.
inline Floats exponential(Floats x) {
  x = x > 88.0f ? broadcast(88.0f) : x;
  x = x < -87.0f ? broadcast(-87.0f) : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  Floats n = (x * 1.44269504f + magic) - magic;
  Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = broadcast(1.0f / 5040);
  for (float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = p * r + coefficient;
  Ints exponent = (__builtin_convertvector(n, Ints) + 127) << 23;
  return p * reinterpret_cast<Floats>(exponent);
}

// An odd rational function, right to 5 units in the last place, or 7 without FMA; the coefficients are those of
// Eigen's tanh, and so is the argument from which on it is 1.
inline Floats tanh(Floats x) {
  const Floats square = x * x;
  Floats over = broadcast(-2.76076847742355e-16f), under = broadcast(1.19825839466702e-06f);
  for (float coefficient : {2.00018790482477e-13f, -8.60467152213735e-11f, 5.12229709037114e-08f,
                            1.48572235717979e-05f, 6.37261928875436e-04f, 4.89352455891786e-03f})
    over = over * square + coefficient;
  for (float coefficient : {1.18534705686654e-04f, 2.26843463243900e-03f, 4.89352518554385e-03f})
    under = under * square + coefficient;
  const Floats quotient = x * over / under;
  constexpr float IS_ONE = 7.99881172180175781f;
  return x > IS_ONE ? broadcast(1.0f) : x < -IS_ONE ? broadcast(-1.0f) : quotient;
}

// Right to 3 units in the last place. By tanh, a closed gate would leak 1e-7, as 0.5 - 0.5 keeps no digits.
inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

// ---- products ----

// The most rows of a product of oneDNN's. torch keeps its code for each number of rows, in each thread and for ever,
// and more rows have longer code. A batch of sentences has another number at almost every step.
constexpr int64_t MOST_ROWS = 128;

// Calls apply(row, count) for each piece of some rows.
template <class Do>
inline void for_each_piece(int64_t rows, Do apply) {
  for (int64_t row = 0; row < rows; row += MOST_ROWS) apply(row, std::min(MOST_ROWS, rows - row));
}

// C[M, N] = A[M, K] @ B[K, N], or += with `add`, for few rows and columns: N is a multiple of twice the lanes.
#if defined(__AVX512F__)
inline void product(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, const float* A,
                    const float* B, float* C, bool add = false) {
  for_each_piece(M, [&](int64_t row, int64_t rows) {
    cpublas::brgemm(rows, N, K, lda, ldb, ldc, add, A + row * lda, B, C + row * ldc, false);
  });
}
#else
// Without AVX-512 oneDNN's product is slower. Here the sums of a tile of ROWS rows and two vectors stay in
// registers, of which AVX2 has 16, and a stretch of B stays in the L1 cache for all rows.
constexpr int64_t ROWS = 6, STRETCH = 128;

template <int64_t COUNT>
void tile(int64_t K, int64_t lda, int64_t ldb, int64_t ldc, bool add, const float* A, const float* B, float* C) {
  Floats sums[COUNT][2];
  for (int64_t row = 0; row < COUNT; ++row)
    for (int64_t half = 0; half < 2; ++half)
      sums[row][half] = add ? load(C + row * ldc + half * LANES) : Floats{};
  for (int64_t k = 0; k < K; ++k) {
    // The next stretch may lie in the L3 cache. Its address is no pointer: it may be beyond the end of B.
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(B) + (k + STRETCH) * ldb * 4));
    const Floats left = load(B + k * ldb), right = load(B + k * ldb + LANES);
    for (int64_t row = 0; row < COUNT; ++row) {
      const Floats a = broadcast(A[row * lda + k]);
      sums[row][0] += a * left;
      sums[row][1] += a * right;
    }
  }
  for (int64_t row = 0; row < COUNT; ++row)
    for (int64_t half = 0; half < 2; ++half) store(C + row * ldc + half * LANES, sums[row][half]);
}

constexpr decltype(&tile<1>) TILES[ROWS] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};

inline void product(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, const float* A,
                    const float* B, float* C, bool add = false) {
  const int64_t tiles = (M + ROWS - 1) / ROWS;
  for (int64_t k = 0; k < K; k += STRETCH)
    for (int64_t each = 0; each < tiles; ++each) {
      const int64_t row = M * each / tiles, count = M * (each + 1) / tiles - row;
      for (int64_t column = 0; column < N; column += 2 * LANES)
        TILES[count - 1](std::min(STRETCH, K - k), lda, ldb, ldc, add || k > 0, A + row * lda + k, B + k * ldb + column,
                         C + row * ldc + column);
    }
}
#endif

inline void product(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, const bfloat16* A,
                    const bfloat16* B, float* C, bool add = false) {
  for_each_piece(M, [&](int64_t row, int64_t rows) {
    cpublas::brgemm(rows, N, K, lda, ldb, ldc, add, reinterpret_cast<const c10::BFloat16*>(A + row * lda),
                    reinterpret_cast<const c10::BFloat16*>(B), C + row * ldc, true);
  });
}

template <class T>
constexpr int64_t PAIR = 1;
template <>
constexpr int64_t PAIR<bfloat16> = 2;

inline int64_t ceil_div(int64_t number, int64_t divisor) { return (number + divisor - 1) / divisor; }

// A thread's share of some blocks: [first, last).
struct Share {
  int64_t first, last;
  explicit Share(int64_t blocks) {
    int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    first = blocks * thread / threads;
    last = blocks * (thread + 1) / threads;
  }
};

// The first row of each step: of its input and its output in a state [B + P], and of the step in an array [P].
struct Steps {
  std::vector<int64_t> before, after, packed;
  Steps(int64_t count, const int64_t* batch_sizes) : before(count), after(count), packed(count) {
    int64_t start = 0, done = 0;
    for (int64_t t = 0; t < count; ++t) {
      before[t] = start;
      start += t == 0 ? batch_sizes[0] : batch_sizes[t - 1];
      after[t] = start;
      packed[t] = done;
      done += batch_sizes[t];
    }
  }
};

// The columns that a thread computes at once.
constexpr int64_t WIDE = 2 * LANES;

// Transposes a matrix of 32-bit numbers [rows, columns] to [columns, WIDE]; columns beyond `rows` are zero.
inline void transpose(int64_t rows, int64_t columns, const void* from, void* to) {
  constexpr int64_t PIECE = 64;
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
  for (int64_t start = 0; start < columns; start += PIECE)
    for (int64_t row = 0; row < WIDE; ++row)
      for (int64_t column = start; column < std::min(columns, start + PIECE); ++column) {
        uint32_t number = 0;
        if (row < rows) std::memcpy(&number, source + (row * columns + column) * 4, 4);
        std::memcpy(target + (column * WIDE + row) * 4, &number, 4);
      }
}

// At most LANES columns of one row, or of two rows as pairs, in a vector.
inline UInts columns(const float* row, const float*, int64_t count) {
  return reinterpret_cast<UInts>(load(row, count));
}

inline UInts columns(const bfloat16* row, const bfloat16* next, int64_t count) {
  const UInts high = next ? reinterpret_cast<UInts>(load(next, count)) : UInts{};
  return reinterpret_cast<UInts>(load(row, count)) >> 16 | high;
}

// Packs a block of B[K, N] of some vectors of columns: vector v of row k begins at `from(v) + k * row_stride`, and
// holds `count(v)` columns. What is beyond them, and rows from K to `rows`, are zeros.
template <class T, class From, class Count>
void pack(int64_t vectors, int64_t rows, int64_t K, int64_t row_stride, T* to, From from, Count count) {
  for (int64_t k = 0; k < rows; k += PAIR<T>)
    for (int64_t v = 0; v < vectors; ++v, to += LANES * PAIR<T>) {
      const T* const row = from(v) + k * row_stride;
      const UInts some =
          k < K && count(v) > 0 ? columns(row, k + 1 < K ? row + row_stride : nullptr, count(v)) : UInts{};
      std::memcpy(to, &some, sizeof some);
    }
}

// The same of a matrix [K, N] whose rows lie one after the other, and of a block of its columns.
template <class T>
void pack(int64_t block, int64_t rows, int64_t K, int64_t N, const T* matrix, T* packed) {
  auto first = [&](int64_t v) { return block * WIDE + v * LANES; };
  pack(
      2, rows, K, N, packed + block * rows * WIDE, [&](int64_t v) { return matrix + first(v); },
      [&](int64_t v) { return std::min<int64_t>(LANES, N - first(v)); });
}

// The same of a kernel [K, G]: a block holds the four gates of as many units as there are lanes.
template <class T>
void pack_gates(int64_t block, int64_t rows, int64_t K, int64_t hidden, const T* kernel, T* packed) {
  pack(
      4, rows, K, 4 * hidden, packed + block * rows * 4 * LANES,
      [&](int64_t gate) { return kernel + gate * hidden + block * LANES; },
      [&](int64_t) { return std::min<int64_t>(LANES, hidden - block * LANES); });
}

// The same of the transpose of a matrix [N, K].
template <class T>
void pack_transposed(int64_t block, int64_t rows, int64_t K, int64_t N, const T* matrix, T* packed) {
  constexpr int64_t pair = PAIR<T>;
  const T* const from = matrix + block * WIDE * K;
  T* const to = packed + block * rows * WIDE;
  const int64_t units = std::min(WIDE, N - block * WIDE), whole = K / pair * pair;
  if (K == whole) transpose(units, K / pair, from, to);
  for (int64_t k = K == whole ? K : 0; k < rows; ++k)
    for (int64_t n = 0; n < WIDE; ++n)
      to[(k / pair * WIDE + n) * pair + k % pair] = k < K && n < units ? from[n * K + k] : T{};
}

// Calls apply(row, column, count) for each vector in a block of columns.
template <class Do>
inline void for_each_vector(int64_t rows, int64_t block, int64_t width, Do apply) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = block * WIDE; column < std::min((block + 1) * WIDE, width); column += LANES)
      apply(row, column, std::min<int64_t>(LANES, width - column));
}

// Some units of a row: from the sums before the nonlinearities to the gates' activations, c and h.
template <class T, class Summed>
inline void lstm_units(Summed summed, int64_t hidden, int64_t units, const float* c_before, T* gate, float* c_after,
                       T* h) {
  const Floats i = sigmoid(summed(0)), f = sigmoid(summed(1)), g = tanh(summed(2)), o = sigmoid(summed(3));
  const Floats cell = f * load(c_before, units) + i * g;
  store(gate, i, units);
  store(gate + hidden, f, units);
  store(gate + 2 * hidden, g, units);
  store(gate + 3 * hidden, o, units);
  store(c_after, cell, units);
  store(h, o * tanh(cell), units);
}

// Back: from the gradient with respect to h and c after the step to that of the sums, and of c before it.
template <class T>
inline void lstm_units_back(Floats d_h_after, int64_t hidden, int64_t units, const T* gate, const float* c_before,
                            const float* c_after, float* d_c, T* d_gate) {
  const Floats i = load(gate, units), f = load(gate + hidden, units), g = load(gate + 2 * hidden, units),
               o = load(gate + 3 * hidden, units);
  const Floats squashed = tanh(load(c_after, units));
  const Floats d_c_after = load(d_c, units) + d_h_after * o * (1.0f - squashed * squashed);
  store(d_gate, d_c_after * g * i * (1.0f - i), units);
  store(d_gate + hidden, d_c_after * load(c_before, units) * f * (1.0f - f), units);
  store(d_gate + 2 * hidden, d_c_after * i * (1.0f - g * g), units);
  store(d_gate + 3 * hidden, d_h_after * squashed * o * (1.0f - o), units);
  store(d_c, d_c_after * f, units);
}

template <class T>
void lstm_forward(int64_t steps, const int64_t* batch_sizes, int64_t hidden, int64_t stride, T* gates, const T* bias,
                  const T* kernel, T* packed, T* h, float* c, int64_t threads) {
  const int64_t blocks = ceil_div(hidden, LANES), width = 4 * LANES;
  const Steps at(steps, batch_sizes);
#pragma omp parallel num_threads(threads)
  {
    const Share mine(blocks);
    std::vector<float> sums(batch_sizes[0] * width);
    for (int64_t block = mine.first; block < mine.last; ++block)
      pack_gates(block, stride, hidden, hidden, kernel, packed);
    for (int64_t t = 0; t < steps; ++t) {
      // Each thread computes its own units from the state of all units.
#pragma omp barrier
      for (int64_t block = mine.first; block < mine.last; ++block) {
        const int64_t unit = block * LANES, units = std::min<int64_t>(LANES, hidden - unit);
        product(batch_sizes[t], width, stride, stride, width, width, h + at.before[t] * stride,
                packed + block * stride * width, sums.data());
        for (int64_t row = 0; row < batch_sizes[t]; ++row) {
          T* gate = gates + (at.packed[t] + row) * 4 * hidden + unit;
          auto summed = [&](int64_t which) {
            return load(&sums[row * width + which * LANES]) + load(gate + which * hidden, units) +
                   load(bias + which * hidden + unit, units);
          };
          lstm_units(summed, hidden, units, c + (at.before[t] + row) * hidden + unit, gate,
                     c + (at.after[t] + row) * hidden + unit, h + (at.after[t] + row) * stride + unit);
        }
      }
    }
    cpublas::brgemm_release(PAIR<T> == 2);
  }
}

// Back: d_state[rows, units] = d_gates[rows, K] @ the transpose of a kernel. A thread computes its blocks of units. In
// wide layers it takes a stretch of K at a time for all of them, so that this part of d_gates stays in the L2 cache.
template <class T>
inline void backprop_to_state(const Share& mine, int64_t rows, int64_t K, int64_t row_stride, const T* d_gates,
                              const T* packed, float* d_state) {
  constexpr int64_t LONGEST = 11'000 / sizeof(T);  // 20 rows and a block of the kernel: 0.6 MB, and 0.4 without AVX-512
  const int64_t stretch = ceil_div(ceil_div(K, ceil_div(K, LONGEST)), WIDE) * WIDE;
  for (int64_t k = 0; k < K; k += stretch)
    for (int64_t block = mine.first; block < mine.last; ++block)
      product(rows, WIDE, std::min(stretch, K - k), K, WIDE, row_stride, d_gates + k, packed + (block * K + k) * WIDE,
              d_state + block * WIDE, k > 0);
}

// The rows of d_h lie apart by whole blocks.
template <class T>
void lstm_backward(int64_t steps, const int64_t* batch_sizes, int64_t hidden, const T* gates, const float* c,
                   const T* d_output, const T* kernel, T* packed, T* d_gates, float* d_h, float* d_c,
                   int64_t threads) {
  const int64_t blocks = ceil_div(hidden, WIDE), width = 4 * hidden, row_stride = blocks * WIDE;
  const Steps at(steps, batch_sizes);
#pragma omp parallel num_threads(threads)
  {
    const Share mine(blocks);
    for (int64_t block = mine.first; block < mine.last; ++block)
      pack_transposed(block, width, width, hidden, kernel, packed);
    for (int64_t t = steps - 1; t >= 0; --t) {
      for (int64_t block = mine.first; block < mine.last; ++block)
        for_each_vector(batch_sizes[t], block, hidden, [&](int64_t row, int64_t unit, int64_t count) {
          const int64_t step = at.packed[t] + row;
          const Floats d_h_after =
              load(d_h + row * row_stride + unit, count) + load(d_output + step * hidden + unit, count);
          lstm_units_back(d_h_after, hidden, count, gates + step * width + unit,
                          c + (at.before[t] + row) * hidden + unit, c + (at.after[t] + row) * hidden + unit,
                          d_c + row * hidden + unit, d_gates + step * width + unit);
        });
      // Each unit's gradient needs the gates of all units; the next step back needs only its own.
#pragma omp barrier
      backprop_to_state(mine, batch_sizes[t], width, row_stride, d_gates + at.packed[t] * width, packed, d_h);
    }
    cpublas::brgemm_release(PAIR<T> == 2);
  }
}

// ---- the Mogrifier: an LSTM whose input and state gate each other before each step ----

// The sizes of a layer. Rows that are factors of products lie apart by `stride`; what is beyond a width is zero.
struct Sizes {
  int64_t width[2], stride[2];  // of x and h
  int64_t rank, rank_stride;    // 0: the rounds' kernels are no products
};

// A round: it gates x or h by the other. [V, W] stands for the width of the other and its own; M is W, or the rank.
template <class T>
struct Round {
  const T *kernel, *right, *bias;  // [V, M], of a rank [rank, W], and [W]
  T *inner, *tanh, *gated;         // of all steps: what the kernel gives, if there is a rank; tanh; x or h after it
  T *d_z, *d_inner;                // of all steps: the gradients with respect to the sums, and to `inner`
  T *packed, *packed_right;        // the weights in blocks, as `product` takes them
};

template <class T>
void mogrifier_forward(int64_t steps, const int64_t* batch_sizes, const Sizes& sizes, int64_t rounds,
                       const Round<T>* all_rounds, const T* x, const T* kernel, const T* recurrent_kernel,
                       const T* bias, T* packed, T* gates, T* h, float* c, int64_t threads) {
  const int64_t hidden = sizes.width[1], wide = 4 * LANES;
  T* const packed_recurrent = packed + ceil_div(hidden, LANES) * sizes.stride[0] * wide;
  const Steps at(steps, batch_sizes);
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> sums(batch_sizes[0] * wide);
    const Share units(ceil_div(hidden, LANES)), ranks(ceil_div(sizes.rank, WIDE));
    const Share columns[2] = {Share(ceil_div(sizes.width[0], WIDE)), Share(ceil_div(sizes.width[1], WIDE))};
    for (int64_t round = 0; round < rounds; ++round) {
      const int64_t side = round % 2, V = sizes.width[1 - side], W = sizes.width[side],
                    M = sizes.rank ? sizes.rank : W;
      const Round<T>& each = all_rounds[round];
      const Share mine = sizes.rank ? ranks : columns[side];
      for (int64_t block = mine.first; block < mine.last; ++block)
        pack(block, sizes.stride[1 - side], V, M, each.kernel, each.packed);
      for (int64_t block = columns[side].first; sizes.rank && block < columns[side].last; ++block)
        pack(block, sizes.rank_stride, sizes.rank, W, each.right, each.packed_right);
    }
    for (int64_t block = units.first; block < units.last; ++block) {
      pack_gates(block, sizes.stride[0], sizes.width[0], hidden, kernel, packed);
      pack_gates(block, sizes.stride[1], hidden, hidden, recurrent_kernel, packed_recurrent);
    }
    for (int64_t t = 0; t < steps; ++t) {
      const int64_t rows = batch_sizes[t], start = at.packed[t];
      const T* pair[2] = {x + start * sizes.stride[0], h + at.before[t] * sizes.stride[1]};
      for (int64_t round = 0; round < rounds; ++round) {
        const int64_t side = round % 2, W = sizes.width[side], stride = sizes.stride[side];
        const Round<T>& each = all_rounds[round];
        const T *other = pair[1 - side], *factor = each.packed;
        int64_t depth = sizes.stride[1 - side];
#pragma omp barrier
        if (sizes.rank) {
          T* const inner = each.inner + start * sizes.rank_stride;
          for (int64_t block = ranks.first; block < ranks.last; ++block) {
            product(rows, WIDE, depth, depth, WIDE, WIDE, other, factor + block * depth * WIDE, sums.data());
            for_each_vector(rows, block, sizes.rank, [&](int64_t row, int64_t column, int64_t count) {
              store(inner + row * sizes.rank_stride + column, load(&sums[row * WIDE + column % WIDE]), count);
            });
          }
          other = inner, factor = each.packed_right, depth = sizes.rank_stride;
#pragma omp barrier
        }
        for (int64_t block = columns[side].first; block < columns[side].last; ++block) {
          product(rows, WIDE, depth, depth, WIDE, WIDE, other, factor + block * depth * WIDE, sums.data());
          for_each_vector(rows, block, W, [&](int64_t row, int64_t column, int64_t count) {
            const Floats z = load(&sums[row * WIDE + column % WIDE]) + load(each.bias + column, count);
            const Floats squashed = tanh(0.5f * z), before = load(pair[side] + row * stride + column, count);
            store(each.tanh + (start + row) * W + column, squashed, count);
            store(each.gated + (start + row) * stride + column, before + before * squashed, count);
          });
        }
        pair[side] = each.gated + start * stride;
      }
#pragma omp barrier
      for (int64_t block = units.first; block < units.last; ++block) {
        const int64_t unit = block * LANES, count = std::min<int64_t>(LANES, hidden - unit);
        for (int64_t side = 0; side < 2; ++side)
          product(rows, wide, sizes.stride[side], sizes.stride[side], wide, wide, pair[side],
                  (side == 0 ? packed : packed_recurrent) + block * sizes.stride[side] * wide, sums.data(),
                  side == 1);
        for (int64_t row = 0; row < rows; ++row) {
          auto summed = [&](int64_t which) {
            return load(&sums[row * wide + which * LANES]) + load(bias + which * hidden + unit, count);
          };
          lstm_units(summed, hidden, count, c + (at.before[t] + row) * hidden + unit,
                     gates + (start + row) * 4 * hidden + unit, c + (at.after[t] + row) * hidden + unit,
                     h + (at.after[t] + row) * sizes.stride[1] + unit);
        }
      }
    }
    cpublas::brgemm_release(PAIR<T> == 2);
  }
}

// d_x [B, ...] and d_h are float32, and their rows lie apart by whole blocks.
template <class T>
void mogrifier_backward(int64_t steps, const int64_t* batch_sizes, const Sizes& sizes, int64_t rounds,
                        const Round<T>* all_rounds, const T* x, const T* kernel, const T* recurrent_kernel,
                        T* packed, const T* gates, const T* h, const float* c, const T* d_output, T* d_gates,
                        T* d_input, float* d_x, float* d_h, float* d_c, int64_t threads) {
  const int64_t hidden = sizes.width[1], gate_width = 4 * hidden;
  const int64_t row_stride[2] = {ceil_div(sizes.width[0], WIDE) * WIDE, ceil_div(hidden, WIDE) * WIDE};
  T* const packed_sides[2] = {packed, packed + row_stride[0] * gate_width};
  float* const d_pair[2] = {d_x, d_h};
  const Steps at(steps, batch_sizes);
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> sums(batch_sizes[0] * WIDE);
    const Share ranks(ceil_div(sizes.rank, WIDE));
    const Share columns[2] = {Share(ceil_div(sizes.width[0], WIDE)), Share(ceil_div(sizes.width[1], WIDE))};
    // The factors are the weights, transposed.
    for (int64_t round = 0; round < rounds; ++round) {
      const int64_t side = round % 2, V = sizes.width[1 - side], W = sizes.width[side],
                    M = sizes.rank ? sizes.rank : W;
      const Round<T>& each = all_rounds[round];
      for (int64_t block = columns[1 - side].first; block < columns[1 - side].last; ++block)
        pack_transposed(block, sizes.rank ? sizes.rank_stride : sizes.stride[side], M, V, each.kernel, each.packed);
      for (int64_t block = ranks.first; block < ranks.last; ++block)
        pack_transposed(block, sizes.stride[side], W, sizes.rank, each.right, each.packed_right);
    }
    for (int64_t side = 0; side < 2; ++side)
      for (int64_t block = columns[side].first; block < columns[side].last; ++block) {
        pack_transposed(block, gate_width, gate_width, sizes.width[side], side == 0 ? kernel : recurrent_kernel,
                        packed_sides[side]);
      }
    for (int64_t t = steps - 1; t >= 0; --t) {
      const int64_t rows = batch_sizes[t], start = at.packed[t];
      for (int64_t block = columns[1].first; block < columns[1].last; ++block)
        for_each_vector(rows, block, hidden, [&](int64_t row, int64_t unit, int64_t count) {
          const Floats d_h_after =
              load(d_h + row * row_stride[1] + unit, count) + load(d_output + (start + row) * hidden + unit, count);
          lstm_units_back(d_h_after, hidden, count, gates + (start + row) * gate_width + unit,
                          c + (at.before[t] + row) * hidden + unit, c + (at.after[t] + row) * hidden + unit,
                          d_c + row * hidden + unit, d_gates + (start + row) * gate_width + unit);
        });
#pragma omp barrier
      for (int64_t side = 0; side < 2; ++side)
        backprop_to_state(columns[side], rows, gate_width, row_stride[side], d_gates + start * gate_width,
                          packed_sides[side], d_pair[side]);
      // What a thread changes of d_x and d_h it alone reads: only the factors of products are for all.
      for (int64_t round = rounds - 1; round >= 0; --round) {
        const int64_t side = round % 2, W = sizes.width[side], stride = sizes.stride[side];
        const Round<T>& each = all_rounds[round];
        const T* const before = round >= 2  ? all_rounds[round - 2].gated + start * stride
                                : side == 0 ? x + start * stride
                                            : h + at.before[t] * stride;
        for (int64_t block = columns[side].first; block < columns[side].last; ++block)
          for_each_vector(rows, block, W, [&](int64_t row, int64_t column, int64_t count) {
            float* const gradient = d_pair[side] + row * row_stride[side] + column;
            const Floats d = load(gradient), squashed = load(each.tanh + (start + row) * W + column, count);
            const Floats slope = 0.5f * load(before + row * stride + column, count) * (1.0f - squashed * squashed);
            store(each.d_z + (start + row) * stride + column, d * slope, count);
            store(gradient, d + d * squashed);
          });
        const T *factor = each.d_z + start * stride;
        int64_t depth = stride;
#pragma omp barrier
        if (sizes.rank) {
          T* const inner = each.d_inner + start * sizes.rank_stride;
          for (int64_t block = ranks.first; block < ranks.last; ++block) {
            product(rows, WIDE, depth, depth, WIDE, WIDE, factor, each.packed_right + block * depth * WIDE,
                    sums.data());
            for_each_vector(rows, block, sizes.rank, [&](int64_t row, int64_t column, int64_t count) {
              store(inner + row * sizes.rank_stride + column, load(&sums[row * WIDE + column % WIDE]), count);
            });
          }
          factor = inner, depth = sizes.rank_stride;
#pragma omp barrier
        }
        for (int64_t block = columns[1 - side].first; block < columns[1 - side].last; ++block)
          product(rows, WIDE, depth, depth, WIDE, row_stride[1 - side], factor, each.packed + block * depth * WIDE,
                  d_pair[1 - side] + block * WIDE, true);
      }
      for (int64_t block = columns[0].first; block < columns[0].last; ++block)
        for_each_vector(rows, block, sizes.width[0], [&](int64_t row, int64_t column, int64_t count) {
          store(d_input + (start + row) * sizes.width[0] + column, load(d_x + row * row_stride[0] + column), count);
        });
    }
    cpublas::brgemm_release(PAIR<T> == 2);
  }
}

// ---- large products ----

using Sgemm = void (*)(int order, int a_transposed, int b_transposed, int M, int N, int K, float alpha,
                       const float* A, int lda, const float* B, int ldb, float beta, float* C, int ldc);
constexpr int ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112;  // cblas.h

// C[M, N] = A[M, K] @ B[K, N] by OpenBLAS. Each thread computes a rectangle of C, as square as can be.
void multiply(Sgemm sgemm, int64_t M, int64_t N, int64_t K, int64_t a_transposed, const float* A, int64_t lda,
              int64_t b_transposed, const float* B, int64_t ldb, float* C, int64_t ldc, int64_t threads) {
  int64_t down = 1;
  for (int64_t parts = 2; parts <= threads; ++parts)
    if (threads % parts == 0 && M / parts + N * parts / threads < M / down + N * down / threads) down = parts;
  const int64_t across = threads / down;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t part = 0; part < threads; ++part) {
    auto cut = [](int64_t size, int64_t at, int64_t parts) {
      return std::min(size, ceil_div(size, 2 * LANES) * at / parts * 2 * LANES);
    };
    const int64_t row = cut(M, part / across, down), rows = cut(M, part / across + 1, down) - row;
    const int64_t column = cut(N, part % across, across), columns = cut(N, part % across + 1, across) - column;
    if (rows == 0 || columns == 0) continue;
    auto narrow = [](int64_t size) { return static_cast<int>(size); };  // the caller has seen that they fit
    sgemm(ROW_MAJOR, a_transposed ? TRANSPOSED : PLAIN, b_transposed ? TRANSPOSED : PLAIN, narrow(rows),
          narrow(columns), narrow(K), 1.0f, A + row * (a_transposed ? 1 : lda), narrow(lda),
          B + column * (b_transposed ? ldb : 1), narrow(ldb), 0.0f, C + row * ldc + column, narrow(ldc));
  }
}

// ---- softmax cross-entropy ----

// Words whose exponentials are summed in float32. Beside a likely word's, those of many unlikely ones would be
// rounded away one by one: 1e-5 of a log-probability in a vocabulary of 10,000.
constexpr int64_t SUMMED = 32 * LANES;

template <class T>
void cross_entropy(int64_t tokens, int64_t words, T* logits, const int64_t* targets, float* nll, int64_t gradient,
                   int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t token = 0; token < tokens; ++token) {
    T* row = logits + token * words;
    T* const target = row + targets[token];
    const float logit = load(target, 1)[0];
    const int64_t whole = words / LANES * LANES, rest = words - whole;
    // A logit that is NaN is no maximum, but makes the sum below NaN.
    Floats largest = broadcast(logit);
    for (int64_t word = 0; word < whole; word += LANES) {
      Floats x = load(row + word);
      largest = x > largest ? x : largest;
    }
    for (int64_t word = whole; word < words; ++word) largest[0] = std::max(largest[0], load(row + word, 1)[0]);
    const float most = maximum(largest);
    double total = 0;
    for (int64_t begin = 0; begin < whole; begin += SUMMED) {
      const int64_t end = std::min(whole, begin + SUMMED);
      Floats sums = {};
      for (int64_t word = begin; word < end; word += LANES) sums += exponential(load(row + word) - most);
      total += sum(sums);
    }
    if (rest) {
      Floats last = exponential(load(row + whole, rest) - most);
      for (int64_t lane = 0; lane < rest; ++lane) total += last[lane];
    }
    nll[token] = static_cast<float>(static_cast<double>(most) - logit + std::log(total));
    if (!gradient) continue;
    const float factor = static_cast<float>(1 / total);
    for (int64_t word = 0; word < words; word += LANES) {
      const int64_t lanes = std::min<int64_t>(LANES, words - word);
      store(row + word, exponential(load(row + word, lanes) - most) * factor, lanes);
    }
    // Not the probability less 1: it is next to 1 where the model is sure, and rounded there.
    store(target, broadcast(std::expm1(-nll[token])), 1);
  }
}

// ---- norm and update ----

constexpr int64_t CHUNK = 256 * LANES;  // a lane adds so few squares in float that the sum is within 1e-6

template <class T>
double sum_of_squares(int64_t count, const T* values, int64_t threads) {
  const int64_t chunks = ceil_div(count, CHUNK);
  std::vector<double> sums(chunks);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t end = std::min(count, (chunk + 1) * CHUNK);
    Floats some = {};
    for (int64_t at = chunk * CHUNK; at < end; at += LANES) {
      const Floats x = load(values + at, end - at);
      some += x * x;
    }
    sums[chunk] = sum(some);
  }
  double total = 0;
  for (double each : sums) total += each;
  return total;
}

template <class T>
void update(int64_t count, float* master, const T* gradient, T* weight, float scale, float decay, int64_t threads) {
  const int64_t chunks = ceil_div(count, CHUNK);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t end = std::min(count, (chunk + 1) * CHUNK);
    for (int64_t at = chunk * CHUNK; at < end; at += LANES) {
      const int64_t lanes = end - at;
      const Floats before = load(master + at, lanes);
      Floats moved = before + load(gradient + at, lanes) * scale;
      if (decay != 0) moved += before * decay;
      store(master + at, moved, lanes);
      if (static_cast<void*>(weight) != static_cast<void*>(master)) store(weight + at, moved, lanes);
    }
  }
}

// ---- dropout ----

template <class T>
void mask(int64_t count, const uint16_t* random, int64_t largest_kept, float factor, T* out, int64_t threads) {
  const int64_t chunks = ceil_div(count, CHUNK);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t end = std::min(count, (chunk + 1) * CHUNK);
    for (int64_t at = chunk * CHUNK; at < end; at += LANES) {
      uint16_t some[LANES] = {};
      std::memcpy(some, random + at, std::min<int64_t>(LANES, end - at) * sizeof(uint16_t));
      Halves halves;
      std::memcpy(&halves, some, sizeof halves);
      const UInts numbers = __builtin_convertvector(halves, UInts);
      store(out + at, numbers <= static_cast<uint32_t>(largest_kept) ? broadcast(factor) : Floats{}, end - at);
    }
  }
}

template <class T>
int supported() {
  try {
    T a[4] = {}, b[8 * LANES] = {};
    float c[2 * LANES];
    product(1, 2 * LANES, 4, 4, 2 * LANES, 2 * LANES, a, b, c);
    cpublas::brgemm_release(PAIR<T> == 2);
    return 1;
  } catch (...) {
    return 0;
  }
}

}  // namespace

// Python finds a kernel by its address: a function of each name and type would repeat the kernel's arguments.
#define EXPORT(NAME, KERNEL) extern "C" void* NAME; void* NAME = reinterpret_cast<void*>(&KERNEL);
#define EXPORT_TYPES(KERNEL) EXPORT(KERNEL##_float32, KERNEL<float>) EXPORT(KERNEL##_bfloat16, KERNEL<bfloat16>)
EXPORT_TYPES(supported)
EXPORT_TYPES(lstm_forward)
EXPORT_TYPES(lstm_backward)
EXPORT_TYPES(mogrifier_forward)
EXPORT_TYPES(mogrifier_backward)
EXPORT_TYPES(cross_entropy)
EXPORT_TYPES(sum_of_squares)
EXPORT_TYPES(mask)
EXPORT_TYPES(update)
EXPORT(multiply_float32, multiply)

extern "C" int lanes() { return LANES; }

// Gives the calling thread's rounding and flushing of denormal numbers to the threads that share its work.
extern "C" void share_float_environment(int64_t threads) {
  fenv_t environment;
  fegetenv(&environment);
#pragma omp parallel num_threads(threads)
  fesetenv(&environment);
}
