// The kernels of the thesis on RaptorQ (Vicente 2015), as it writes them, with CUDA for OpenCL: a thread for each element of a product of matrices (Algorithm 3), and
// Gauss-Jordan elimination as three kernels (Algorithms 5, 7 and 9), between which the host looks for pivots. For comparison with product.cu, invert.cu and
// replay.cu.
//
// What the listings have as * and / is the field's, by logarithms (thesis, section 2.2.1); - is +. A work-item is a thread, a work-group a thread block, NDRange the
// grid. The thesis has one element a thread and work-groups that the NDRange divides evenly; here the grid is rounded up, and threads outside do nothing.
//
//   entry                 a thread             grid
//   nc_thesis_multiply    an element of c      x: columns / width, y: rows / height; width * height threads, width first
//   nc_thesis_swap        a column             x: columns / threads
//   nc_thesis_divide      a column             x: columns / threads
//   nc_thesis_sum         an element           as nc_thesis_multiply
//
// What limits them: everything is read from device memory by bytes, and the host waits for each step.

#include "nc_common.cuh"

namespace {

__device__ __forceinline__ nc_u32 times(const nc_tables *tables, nc_u32 a, nc_u32 b) {
    return a && b ? tables->exp[(nc_u32)tables->log[a] + tables->log[b]] : 0;
}

struct Place {
    nc_u32 row, column;
    __device__ __forceinline__ explicit Place(nc_u32 width)
        : row(blockIdx.y * (blockDim.x / width) + threadIdx.x / width), column(blockIdx.x * width + threadIdx.x % width) {}
};

} // namespace

// Algorithm 3: c = a b, where a is rows x inner and b inner x columns.
extern "C" __global__ void __launch_bounds__(NC_THESIS_THREADS_MAX)
nc_thesis_multiply(const nc_u8 *a, const nc_u8 *b, nc_u8 *c, nc_u32 rows, nc_u32 inner, nc_u32 columns, nc_u32 width, const nc_tables *tables) {
    const Place place(width);
    if (place.row >= rows || place.column >= columns) return;
    nc_u32 sum = 0;
#pragma unroll 1
    for (nc_u32 counter = 0; counter < inner; counter++)
        sum ^= times(tables, a[(nc_u64)place.row * inner + counter], b[(nc_u64)counter * columns + place.column]);
    c[(nc_u64)place.row * columns + place.column] = (nc_u8)sum;
}

// Algorithm 5: rows i and j change places.
extern "C" __global__ void __launch_bounds__(NC_THESIS_THREADS_MAX) nc_thesis_swap(nc_u8 *matrix, nc_u32 j, nc_u32 columns, nc_u32 i) {
    const nc_u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const nc_u8 aux = matrix[(nc_u64)j * columns + column];
    matrix[(nc_u64)j * columns + column] = matrix[(nc_u64)i * columns + column];
    matrix[(nc_u64)i * columns + column] = aux;
}

// Algorithm 7: row i divided by its pivot.
extern "C" __global__ void __launch_bounds__(NC_THESIS_THREADS_MAX)
nc_thesis_divide(nc_u8 *matrix, nc_u32 i, nc_u32 columns, nc_u32 pivot, const nc_tables *tables) {
    const nc_u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const nc_u32 value = matrix[(nc_u64)i * columns + column];
    matrix[(nc_u64)i * columns + column] = value ? tables->exp[(nc_u32)tables->log[value] + 255 - tables->log[pivot]] : 0;
}

// Algorithm 9: every row but that of the pivot gets as much of it as makes its own byte below the pivot zero. `copy` is the matrix as it was before.
extern "C" __global__ void __launch_bounds__(NC_THESIS_THREADS_MAX)
nc_thesis_sum(nc_u8 *matrix, nc_u32 pivot, nc_u32 rows, nc_u32 columns, const nc_u8 *copy, nc_u32 width, const nc_tables *tables) {
    const Place place(width);
    if (place.row >= rows || place.column >= columns) return;
    const nc_u32 factor = copy[(nc_u64)place.row * columns + pivot];
    if (factor == 0 || place.row == pivot) return;
    const nc_u64 at = (nc_u64)place.row * columns + place.column;
    matrix[at] = (nc_u8)(times(tables, factor, matrix[(nc_u64)pivot * columns + place.column]) ^ matrix[at]);
}
