//! The back ends of a device, and the distribution of work among them.
//!
//! With several GPUs the generations of a segment are dealt in turn: each GPU holds a part of every
//! segment, and a batch over many generations runs on all of them. In a hybrid the CPU and the GPUs
//! hold every segment. The CPU takes the first rows of each task: its share is its measured rate
//! divided by the sum of all rates.
//!
//! When a back end is lost, the CPU replaces it and a new *epoch* begins. Residents of older epochs
//! cannot be combined any more, and callers that try get an error. A GPU is lost when it reports
//! so, when its thread dies, or when it completes nothing for
//! [`Config::hang_timeout`](super::Config::hang_timeout). Nothing replaces a CPU whose thread dies,
//! nor a GPU where the CPU cannot be opened: this is reported as [`Health::Dead`].

use std::any::Any;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use futures_util::future::{join_all, select_all};
use ncs_codec::shape::Shape;
use ncs_gf::Rows;
use tokio::sync::watch;

use super::backend::{Ended, Memory, Share, Work};
use super::decode::{Decode, Decoded, Singular, Solved, Undecoded};
use super::losses::Losses;
use super::worker::{Member, Owner};
use super::{
    BackendChoice, Batch, Config, Done, Error, Failed, Health, Maker, Recorder, Resident, Task,
    Workload, cpu, cuda,
};

/// Threads that live as long as the device. Threads of replacements join them.
pub(super) type Owners = Arc<Mutex<Vec<Owner>>>;

#[derive(Debug)]
pub(super) struct Members {
    config: Config,
    recorder: Arc<dyn Recorder>,
    set: ArcSwap<Set>,
    epoch: Arc<AtomicU64>,
    losses: Losses,
    host: cuda::HostMemory,
    owners: std::sync::Weak<Mutex<Vec<Owner>>>,
}

/// The back ends in use.
#[derive(Debug, Clone)]
struct Set {
    epoch: u64,
    policy: Policy,
    seats: Vec<Seat>,
}

/// A back end and its measured rate.
#[derive(Debug, Clone)]
struct Seat {
    member: Member,
    rate: Arc<Rate>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// Generations are dealt in turn.
    Deal,
    /// The first seat is the CPU's, which has a share in everything. The others are dealt
    /// generations in turn.
    Hybrid,
}

/// Products per second, smoothed.
#[derive(Debug, Default)]
struct Rate(AtomicU64);

impl Rate {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    fn observe(&self, products: u64, elapsed: Duration) {
        if products == 0 || elapsed.is_zero() {
            return;
        }
        let (now, before) = (products as f64 / elapsed.as_secs_f64(), self.get());
        let rate = if before == 0.0 {
            now
        } else {
            before + RATE_WEIGHT * (now - before)
        };
        self.0.store(rate.to_bits(), Ordering::Relaxed);
    }
}

/// A batch split into lists of work, one per seat, and the remains of the batch.
struct Split {
    parts: Vec<Vec<Work>>,
    tasks: Vec<Task>,
}

impl Members {
    pub(super) fn open(
        config: &Config,
        workload: &Workload,
        recorder: Arc<dyn Recorder>,
    ) -> Result<(Self, Owners), Error> {
        let host = cuda::HostMemory::default();
        let gpus = match config.backend {
            BackendChoice::Cpu => Vec::new(),
            BackendChoice::Auto => {
                cuda::open(config, workload, &recorder, &host).unwrap_or_else(|absence| {
                    absence.tell();
                    Vec::new()
                })
            }
            BackendChoice::Cuda | BackendChoice::Hybrid => {
                cuda::open(config, workload, &recorder, &host)
                    .map_err(|absence| absence.into_error(config.backend))?
            }
        };
        let is_hybrid = config.backend == BackendChoice::Hybrid;
        let mut opened = Vec::new();
        if gpus.is_empty() || is_hybrid {
            // With `auto`, a kernel that only GPUs have must not prevent the start.
            let is_substitute =
                is_hybrid || (config.backend == BackendChoice::Auto && !config.kernel.is_for_cpu());
            opened.push(open_cpu(config, &recorder, is_substitute)?);
        }
        opened.extend(gpus);
        let policy = if is_hybrid {
            Policy::Hybrid
        } else {
            Policy::Deal
        };
        Ok(Self::over(config.clone(), recorder, host, policy, opened))
    }

    /// A device over these back ends.
    fn over(
        config: Config,
        recorder: Arc<dyn Recorder>,
        host: cuda::HostMemory,
        policy: Policy,
        opened: Vec<(Member, Owner)>,
    ) -> (Self, Owners) {
        let (members, owners): (Vec<Member>, Vec<Owner>) = opened.into_iter().unzip();
        let seats = members.into_iter().map(|member| Seat {
            member,
            rate: Arc::default(),
        });
        let owners = Arc::new(Mutex::new(owners));
        let set = Set {
            epoch: 0,
            policy,
            seats: seats.collect(),
        };
        let losses = Losses::new(Arc::clone(&recorder));
        let members = Self {
            config,
            recorder,
            set: ArcSwap::from_pointee(set),
            epoch: Arc::default(),
            losses,
            host,
            owners: Arc::downgrade(&owners),
        };
        (members, owners)
    }

    pub(super) fn backend(&self) -> &'static str {
        let set = self.set.load();
        if set.policy == Policy::Hybrid {
            "hybrid"
        } else {
            set.seats[0].member.backend
        }
    }

    pub(super) fn kernel(&self) -> &'static str {
        let set = self.set.load();
        set.seats.last().map_or("", |seat| seat.member.kernel)
    }

    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.losses.health()
    }

    /// Where others report a loss of one of this device's back ends.
    pub(super) fn losses(&self) -> Losses {
        self.losses.clone()
    }

    pub(super) fn memory(&self) -> Option<Memory> {
        let set = self.set.load();
        let memories = set.seats.iter().filter_map(|seat| seat.member.memory);
        memories.reduce(|one, other| Memory {
            total: one.total + other.total,
            free: one.free + other.free,
        })
    }

    /// The memory of this process that GPUs may write to.
    pub(super) fn host(&self) -> cuda::HostMemory {
        self.host.clone()
    }

    pub(super) fn pin(&self, memory: &mut [u8]) -> Option<Box<dyn Any + Send + Sync>> {
        self.host.pin(memory)
    }

    /// Loads a segment onto every back end that holds a part of it.
    pub(super) async fn load(&self, bytes: Bytes, shape: Shape) -> Result<Resident, Error> {
        let set = self.set.load_full();
        let shares = set.shares();
        let loads = set.seats.iter().zip(shares).map(|(seat, share)| {
            let load = seat.member.load(bytes.clone(), shape, share);
            async {
                self.answer_of(&seat.member, load)
                    .await?
                    .map_err(|error| self.meaning_of(error))
            }
        });
        let mut parts = Vec::with_capacity(set.seats.len());
        for (index, part) in join_all(loads).await.into_iter().enumerate() {
            parts.push(part.inspect_err(|error| self.judge(&set, index, error))?);
        }
        Ok(Resident {
            shape,
            parts,
            epoch: set.epoch,
            now: Arc::clone(&self.epoch),
        })
    }

    /// Has every back end do its part of a batch.
    pub(super) async fn combine(&self, batch: Batch) -> Result<Done, Failed> {
        let set = self.set.load_full();
        if let Err(error) = check(&batch, set.epoch) {
            return Err(Failed { batch, error });
        }
        let Split { parts, mut tasks } = set.split(batch);
        let jobs = set
            .seats
            .iter()
            .zip(parts)
            .enumerate()
            .filter(|(_, (_, part))| !part.is_empty());
        let jobs = jobs.map(|(index, (seat, part))| async move {
            let ended = self
                .answer_of(&seat.member, seat.member.combine(part))
                .await;
            (
                index,
                ended.and_then(|ended| ended.ok_or_else(|| self.meaning_of(Error::Closed))),
            )
        });
        let (mut makers, mut longest, mut fault) = (Vec::with_capacity(1), Duration::ZERO, None);
        let (mut works, mut is_torn) = (Vec::new(), false);
        for (index, ended) in join_all(jobs).await {
            let Ended {
                batch,
                result,
                elapsed,
            } = match ended {
                Ok(ended) => ended,
                Err(error) => {
                    self.judge(&set, index, &error);
                    fault.get_or_insert(error);
                    is_torn = true;
                    continue;
                }
            };
            match result.map_err(|error| self.meaning_of(error)) {
                Ok(()) => {
                    let seat = &set.seats[index];
                    seat.rate
                        .observe(batch.iter().map(Work::products).sum(), elapsed);
                    makers.push(Maker {
                        backend: seat.member.backend,
                        kernel: seat.member.kernel,
                        coded_blocks: batch.iter().map(Work::coded_blocks).sum(),
                        coded_bytes: batch.iter().map(Work::coded_bytes).sum(),
                    });
                    longest = longest.max(elapsed);
                }
                Err(error) => {
                    self.judge(&set, index, &error);
                    fault.get_or_insert(error);
                }
            }
            works.extend(batch);
        }
        if is_torn {
            tasks.clear();
        } else {
            put_back(&mut tasks, works);
        }
        let batch = Batch { tasks };
        match fault {
            None => Ok(Done {
                batch,
                elapsed: longest,
                turnaround: longest,
                makers,
            }),
            Some(error) => Err(Failed { batch, error }),
        }
    }

    /// Deals generations to decode to the back ends that segments are dealt to.
    pub(super) async fn decode(&self, mut jobs: Vec<Decode>) -> Result<Vec<Decoded>, Undecoded> {
        let bad = jobs.iter().enumerate().find_map(|(task, job)| {
            Some(Error::Task {
                task,
                reason: job.check().err()?,
            })
        });
        if let Some(error) = bad {
            return Err(Undecoded { jobs, error });
        }
        let (set, count) = (self.set.load_full(), jobs.len());
        let dealt = set.dealt();
        let seats = &set.seats[dealt.start..dealt.end.min(dealt.start + count)];
        let mut parts: Vec<Vec<Decode>> = seats
            .iter()
            .map(|_| Vec::with_capacity(count.div_ceil(seats.len())))
            .collect();
        jobs.drain(..)
            .enumerate()
            .for_each(|(index, job)| parts[index % seats.len()].push(job));
        let work = seats
            .iter()
            .zip(parts)
            .map(|(seat, part)| self.answer_of(&seat.member, seat.member.decode(part)));
        let (mut ended, mut fault) = (Vec::with_capacity(seats.len()), None);
        for (index, solved) in join_all(work).await.into_iter().enumerate() {
            let solved =
                solved.and_then(|solved| solved.ok_or_else(|| self.meaning_of(Error::Closed)));
            let Solved {
                jobs: part, result, ..
            } = match solved {
                Ok(solved) => solved,
                Err(error) => {
                    self.judge(&set, dealt.start + index, &error);
                    return Err(Undecoded { jobs, error });
                }
            };
            let result = result.map_err(|error| self.meaning_of(error));
            if let Err(error) = &result {
                self.judge(&set, dealt.start + index, error);
                fault.get_or_insert_with(|| error.clone());
            }
            ended.push((part.into_iter(), result.unwrap_or_default().into_iter()));
        }
        // Restores the original order.
        let mut job_of = |index: usize| ended[index % seats.len()].0.next();
        if let Some(error) = fault {
            return Err(Undecoded {
                jobs: (0..count).filter_map(job_of).collect(),
                error,
            });
        }
        let jobs: Vec<Decode> = (0..count).filter_map(&mut job_of).collect();
        let decoded = jobs.into_iter().enumerate().map(|(index, job)| {
            let Member {
                backend, kernel, ..
            } = seats[index % seats.len()].member;
            let is_solved = ended[index % seats.len()].1.next().unwrap_or_default();
            Decoded {
                job,
                solution: if is_solved { Ok(()) } else { Err(Singular) },
                backend,
                kernel,
            }
        });
        Ok(decoded.collect())
    }

    /// Awaits a back end's answer, unless it is a GPU that hangs.
    async fn answer_of<T>(
        &self,
        member: &Member,
        answer: impl Future<Output = T>,
    ) -> Result<T, Error> {
        let limit = self.config.hang_timeout;
        let answer = member
            .unless_hung((member.backend != "cpu").then_some(limit), answer)
            .await;
        answer.ok_or_else(|| {
            Error::Lost(format!(
                "it has finished no work for {}",
                humantime::format_duration(limit)
            ))
        })
    }

    /// Turns an error into a loss if the thread ended before the device was closed.
    fn meaning_of(&self, error: Error) -> Error {
        match error {
            Error::Closed if self.owners.strong_count() > 0 => Error::Lost(THREAD_ENDED.to_owned()),
            error => error,
        }
    }

    /// Notices threads that end while idle, for as long as this is polled.
    pub(super) async fn watch(&self) {
        loop {
            let set = self.set.load_full();
            let ends = set.seats.iter().map(|seat| Box::pin(seat.member.ended()));
            let ((), index, _) = select_all(ends).await;
            self.judge(&set, index, &self.meaning_of(Error::Closed));
            if self.set.load().epoch == set.epoch {
                // Nothing has replaced it, so there is nothing more to notice.
                return std::future::pending().await;
            }
        }
    }

    /// Replaces a lost back end by the CPU.
    fn judge(&self, seen: &Set, index: usize, error: &Error) {
        let Error::Lost(reason) = error else { return };
        let Some(owners) = self.owners.upgrade() else {
            return;
        };
        let mut owners = owners.lock().unwrap_or_else(PoisonError::into_inner);
        let set = self.set.load_full();
        if set.epoch != seen.epoch {
            return;
        }
        let lost = &set.seats[index].member;
        if lost.backend == "cpu" {
            tracing::error!("lost the CPU back end, which has no substitute: {reason}");
            self.losses.dead(reason);
            return;
        }
        tracing::error!(
            "lost the back end {}, falling back to the CPU: {reason}",
            lost.backend
        );
        let substitute = match set.seats.iter().find(|seat| seat.member.backend == "cpu") {
            // The CPU of a hybrid has a share already, and takes the other seat as well.
            Some(seat) => Ok(seat.clone()),
            None => open_cpu(&self.config, &self.recorder, true).map(|(member, owner)| {
                owners.push(owner);
                Seat {
                    member,
                    rate: Arc::default(),
                }
            }),
        };
        self.replace(&set, index, substitute, reason);
    }

    /// Begins an epoch with a replacement for a lost back end. Without one the device codes nothing
    /// any more.
    fn replace(&self, set: &Set, index: usize, substitute: Result<Seat, Error>, reason: &str) {
        let substitute = match substitute {
            Ok(seat) => seat,
            Err(error) => {
                tracing::error!("cannot fall back to the CPU: {error}");
                return self
                    .losses
                    .dead(&format!("{reason}; cannot fall back to the CPU: {error}"));
            }
        };
        let mut next = Set {
            epoch: set.epoch + 1,
            ..set.clone()
        };
        next.seats[index] = substitute;
        self.epoch.store(next.epoch, Ordering::Release);
        self.set.store(Arc::new(next));
        self.losses.degraded(reason);
    }
}

impl Set {
    /// Which generations each seat holds.
    fn shares(&self) -> Vec<Share> {
        let dealt = self.dealt();
        let of = u32::try_from(dealt.len()).expect("few back ends");
        let mut shares = vec![Share::ALL; dealt.start];
        shares.extend((0..of).map(|index| Share { index, of }));
        shares
    }

    /// The seats that generations are dealt to.
    fn dealt(&self) -> std::ops::Range<usize> {
        usize::from(self.policy == Policy::Hybrid)..self.seats.len()
    }

    fn split(&self, mut batch: Batch) -> Split {
        let dealt = self.dealt();
        let cpu_share = self.cpu_share();
        let mut parts: Vec<Vec<Work>> = self.seats.iter().map(|_| Vec::new()).collect();
        for (index, task) in batch.tasks.iter_mut().enumerate() {
            let mut out = std::mem::take(&mut task.out);
            let owner = dealt.start + task.generation as usize % dealt.len();
            let rest = out.split_off(cpu_rows(out.len(), cpu_share));
            let first = out.len();
            for (seat, first_row, out) in [(0, 0, out), (owner, first, rest)] {
                if !out.is_empty() {
                    parts[seat].push(work(task, index, seat, first_row, out));
                }
            }
        }
        Split {
            parts,
            tasks: batch.tasks,
        }
    }

    /// The CPU's share of every task in a hybrid.
    fn cpu_share(&self) -> f64 {
        if self.policy == Policy::Deal {
            return 0.0;
        }
        let rates: Vec<f64> = self.seats.iter().map(|seat| seat.rate.get()).collect();
        if rates.contains(&0.0) {
            return CPU_SHARE_AT_FIRST;
        }
        rates[0] / rates.iter().sum::<f64>()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of few rows"
)]
fn cpu_rows(rows: usize, share: f64) -> usize {
    ((rows as f64 * share).round() as usize).min(rows)
}

fn work(task: &Task, index: usize, seat: usize, first_row: usize, out: Vec<BytesMut>) -> Work {
    Work {
        id: task.resident.parts[seat].id,
        _resident: Arc::clone(&task.resident),
        generation: task
            .resident
            .shape
            .generation(task.generation)
            .expect("the batch was checked"),
        rows: task.rows.clone(),
        first_row,
        out,
        out_offset: task.out_offset,
        task: index,
    }
}

/// Returns the slots to their tasks, in order.
fn put_back(tasks: &mut [Task], mut works: Vec<Work>) {
    works.sort_unstable_by_key(|work| (work.task, work.first_row));
    for mut work in works {
        let task = &mut tasks[work.task];
        if task.out.is_empty() {
            task.out = work.out
        } else {
            task.out.append(&mut work.out)
        }
    }
}

fn check(batch: &Batch, epoch: u64) -> Result<(), Error> {
    batch
        .tasks
        .iter()
        .enumerate()
        .try_for_each(|(index, task)| {
            if task.resident.epoch != epoch {
                return Err(Error::Stale);
            }
            check_task(task).map_err(|reason| Error::Task {
                task: index,
                reason,
            })
        })
}

fn check_task(task: &Task) -> Result<(), &'static str> {
    let generation = task
        .resident
        .shape
        .generation(task.generation)
        .ok_or("the segment has no such generation")?;
    let block_bytes = usize::try_from(generation.block_bytes).expect("a block fits in memory");
    let slot_bytes = task.out_offset.saturating_add(block_bytes);
    if !task.rows.fit(generation.n) {
        return Err("the rows do not fit the generation");
    }
    if task.rows.count() != task.out.len() {
        return Err("there are not as many slots as rows");
    }
    if task.out.iter().any(|slot| slot.len() < slot_bytes) {
        return Err("a slot is too short for the block");
    }
    Ok(())
}

impl Work {
    /// Number of rows that are coded blocks.
    fn coded_blocks(&self) -> u64 {
        if matches!(self.rows, Rows::Source { .. }) {
            0
        } else {
            self.out.len() as u64
        }
    }

    /// Bytes of these blocks.
    pub(super) fn coded_bytes(&self) -> u64 {
        self.coded_blocks() * u64::from(self.generation.block_bytes)
    }

    fn products(&self) -> u64 {
        self.coded_bytes() * u64::from(self.generation.n)
    }
}

/// Opens the CPU, beside a GPU or in its place, with a kernel that the CPU has.
fn open_cpu(
    config: &Config,
    recorder: &Arc<dyn Recorder>,
    is_substitute: bool,
) -> Result<(Member, Owner), Error> {
    let mut config = config.clone();
    if is_substitute {
        config.kernel = super::KernelChoice::Default;
    }
    let queue = config.queue_batches;
    let opened = Member::start("cpu", queue, recorder, move || {
        Ok(Box::new(cpu::Cpu::open(&config)?))
    })?;
    tracing::info!("the CPU encodes with the kernel \"{}\"", opened.0.kernel);
    Ok(opened)
}

/// The reason for losing a back end whose thread has ended.
const THREAD_ENDED: &str = "its thread died";
/// Weight of a new measurement.
const RATE_WEIGHT: f64 = 0.2;
/// Used until both have been measured.
const CPU_SHARE_AT_FIRST: f64 = 0.125;

#[cfg(test)]
pub(super) mod tests;
