//! What the server takes of the machine as time goes by: processor time by thread, memory, and the
//! GPU.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::host::ask_gpus;
use nctest::program::status;

/// One look.
#[derive(Debug, Clone)]
pub(crate) struct Look {
    pub(crate) at: Instant,
    /// Seconds of processor time so far, of all threads of a name.
    pub(crate) threads: BTreeMap<String, f64>,
    /// Bytes of memory that it occupies.
    pub(crate) resident: u64,
    /// Percent of the time that the first GPU is busy, as its driver says.
    pub(crate) gpu: Option<f64>,
}

/// Looks at a process every second until it is dropped.
pub(crate) struct Watch {
    looks: Arc<Mutex<Vec<Look>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const EVERY: Duration = Duration::from_secs(1);

impl Watch {
    pub(crate) fn start(process: u32, asks_gpu: bool) -> Self {
        let (looks, is_over) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicBool::new(false)),
        );
        let (list, over) = (Arc::clone(&looks), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            let mut next = Instant::now();
            while !over.load(Ordering::Relaxed) {
                if let Some(look) = Look::at(process, asks_gpu) {
                    list.lock().expect("nobody panics with it").push(look);
                }
                next += EVERY;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        Self {
            looks,
            is_over,
            thread: Some(thread),
        }
    }

    pub(crate) fn looks(&self) -> Vec<Look> {
        self.looks.lock().expect("nobody panics with it").clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

impl Look {
    fn at(process: u32, asks_gpu: bool) -> Option<Self> {
        let mut threads = BTreeMap::new();
        for task in fs::read_dir(format!("/proc/{process}/task"))
            .ok()?
            .flatten()
        {
            // A thread may end meanwhile.
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            if let Some((name, seconds)) = thread_time(&stat) {
                *threads.entry(name.to_owned()).or_insert(0.0) += seconds;
            }
        }
        let gpu = if asks_gpu {
            ask_gpus("utilization.gpu")
                .first()
                .and_then(|text| text.parse().ok())
        } else {
            None
        };
        Some(Self {
            at: Instant::now(),
            threads,
            resident: status(process, "VmRSS")? << 10,
            gpu,
        })
    }
}

/// A thread's name, without a number at its end, and the seconds that it has run: proc(5),
/// `/proc/pid/stat`.
fn thread_time(stat: &str) -> Option<(&str, f64)> {
    let (head, rest) = stat.rsplit_once(") ")?;
    let name = head.split_once('(')?.1;
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    // The first here is the third there; utime and stime are the 14th and 15th.
    let ticks = ticks(11)? + ticks(12)?;
    let name = name
        .trim_end_matches(|letter: char| letter.is_ascii_digit())
        .trim_end_matches('-');
    Some((name, ticks as f64 / TICKS))
}

/// Of a second, for programs on Linux, whatever the kernel's own.
const TICKS: f64 = 100.0;
