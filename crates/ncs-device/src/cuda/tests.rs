//! Tests that need a GPU are skipped without one. They fail instead if `NCTEST_REQUIRE_GPU` is set.

use super::super::backend::{Backend, Counts, Ended, Loading, Memory, ResidentId, Work};
use super::super::decode::{Decode, Solved};
use super::super::members::tests as members;
use super::*;

/// Whether there is a GPU.
pub(super) fn is_here() -> bool {
    let absence = count().err();
    assert!(
        absence.is_none() || std::env::var_os("NCTEST_REQUIRE_GPU").is_none(),
        "a GPU was to be here: {absence:?}"
    );
    absence.is_none()
}

#[test]
fn asking_never_panics_and_always_has_a_reason() {
    if let Err(absence) = count() {
        absence.tell();
        assert!(
            absence
                .into_error(BackendChoice::Cuda)
                .to_string()
                .contains("\"cuda\"")
        );
    }
}

#[test]
fn every_kernel_of_a_gpu_is_there() {
    for &kernel in Kernel::ALL {
        let choice = KernelChoice::Named(kernel);
        assert_eq!(
            combine_of(choice).is_ok(),
            kernel != Kernel::Simd,
            "{kernel}"
        );
    }
    assert_eq!(
        combine_of(KernelChoice::Default).unwrap().unwrap().kernel,
        "table"
    );
    assert!(combine_of(KernelChoice::Auto).unwrap().is_none());
}

/// A GPU whose segments get invalid addresses after the first batch.
struct Poisoned {
    engine: Engine,
    batches: usize,
}

impl Backend for Poisoned {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn kernel(&self) -> &'static str {
        self.engine.kernel()
    }

    fn depth(&self) -> usize {
        self.engine.depth()
    }

    fn load(&mut self, load: Loading) {
        self.engine.load(load);
    }

    fn loaded(&mut self) -> Option<Result<u64, Error>> {
        self.engine.loaded()
    }

    fn start(&mut self, batch: Vec<Work>) {
        if self.batches == 1 {
            self.engine.poison();
        }
        self.batches += 1;
        self.engine.start(batch);
    }

    fn ended(&mut self) -> Option<Ended> {
        self.engine.ended()
    }

    fn decode(&mut self, jobs: Vec<Decode>) {
        self.engine.decode(jobs);
    }

    fn decoded(&mut self) -> Option<Solved> {
        self.engine.decoded()
    }

    fn release(&mut self, id: ResidentId) {
        self.engine.release(id);
    }

    fn memory(&self) -> Option<Memory> {
        self.engine.memory()
    }

    fn take_counts(&mut self) -> Counts {
        self.engine.take_counts()
    }
}

/// A kernel that reads an invalid address ends the context of the process, so this runs in a
/// process of its own.
#[test]
fn a_kernel_that_faults_moves_its_work_to_the_cpu() {
    const NAME: &str = "cuda::tests::a_kernel_that_faults_moves_its_work_to_the_cpu";
    const CHILD: &str = "NCTEST_FAULT_HERE";
    if !is_here() {
        return println!("skipped: no GPU");
    }
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let output = child
            .args([NAME, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}{}", String::from_utf8_lossy(&output.stderr));
        return assert!(
            output.status.success() && said.contains("1 passed"),
            "{}",
            output.status
        );
    }
    let host = HostMemory::default();
    let open = move || {
        let table = combine_of(KernelChoice::Default).unwrap();
        let engine = open_engine(0, table, &Workload::default(), &host)?;
        Ok(Box::new(Poisoned { engine, batches: 0 }) as Box<dyn Backend>)
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(members::lose_one(open, |reason| {
        assert!(reason.contains("CUDA_ERROR"), "{reason}")
    }));
}
