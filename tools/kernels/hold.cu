// Keeps multiprocessors busy, so that what is measured beside it has a smaller card.
//
// Idea. A grid of fewer blocks does not make a card smaller: blocks are spread over all multiprocessors, and each gets more of
// one than on a full card. So the multiprocessors that are to be missing are taken: one block each that asks for all shared
// memory, which leaves no room for any other block, and looks at a word of device memory every millisecond until it is released.
// Looking at host memory every two microseconds made everything beside it three to thirty times as slow as its share of the card.
//
// Launch. One warp a block; dynamic shared memory: all that a block may have. A block adds one to `arrived`, which is the host's, when
// it runs, so that the host knows when the card has become small. `nanoseconds` bounds the wait whatever happens to the host.
#include "nc_common.cuh"

extern "C" __global__ void __launch_bounds__(32) nc_hold(const volatile nc_u32 *released, nc_u32 *arrived, nc_u64 nanoseconds) {
    if (threadIdx.x != 0) return;
    nc_u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    atomicAdd_system(arrived, 1);
    do {
        __nanosleep(1000000);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*released == 0 && now - start < nanoseconds);
}
