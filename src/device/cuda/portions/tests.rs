//! Files on a GPU against the same by the CPU. Skipped without a GPU, and failing without one if `NCTEST_REQUIRE_GPU` says that there
//! is one.

use crate::device::{BackendChoice, Choice};
use crate::offline::tests::assert_all_same;

#[test]
fn files_by_a_gpu_are_those_by_the_cpu() {
    if !super::super::tests::is_here() {
        return println!("skipped: no GPU");
    }
    for backend in [BackendChoice::Cuda, BackendChoice::Hybrid] {
        assert_all_same(Choice { backend, gpu: 0 });
    }
}
