//! Sharing work among back ends and losing them. CPU back ends stand for GPUs.

use ncs_gf::RowKey;

use super::super::backend::{Backend, Counts, Loading, ResidentId};
use super::super::recorder::tests::Sums;
use super::super::{Device, Kernel, KernelChoice, Thread, Threads, Unrecorded};
use super::*;

const K: u32 = 96;
const GENERATIONS: u32 = 7;

/// A back end that claims to be a GPU, and is lost at the batch or load after this many.
struct Mortal {
    inner: cpu::Cpu,
    name: &'static str,
    end: End,
    batches_left: usize,
    loads_left: usize,
    lost: Option<Error>,
}

/// How a back end is lost.
#[derive(Debug, Clone)]
enum End {
    /// It returns the error.
    Says,
    /// Its thread panics.
    Panics,
    /// It never returns, until this is set.
    Hangs(Arc<std::sync::atomic::AtomicBool>),
}

impl Mortal {
    fn lasting(
        config: &Config,
        (batches_left, loads_left): (usize, usize),
        name: &'static str,
        end: End,
    ) -> Result<Self, Error> {
        Ok(Self {
            inner: cpu::Cpu::open(config)?,
            name,
            end,
            batches_left,
            loads_left,
            lost: None,
        })
    }
}

impl Backend for Mortal {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kernel(&self) -> &'static str {
        "table"
    }

    fn depth(&self) -> usize {
        1
    }

    fn load(&mut self, load: Loading) {
        match self.loads_left.checked_sub(1) {
            Some(left) => {
                self.loads_left = left;
                self.inner.load(load);
            }
            None => self.lost = Some(Error::Lost("injected".to_owned())),
        }
    }

    fn loaded(&mut self) -> Option<Result<u64, Error>> {
        self.lost.clone().map(Err).or_else(|| self.inner.loaded())
    }

    fn start(&mut self, batch: Vec<Work>) {
        self.inner.start(batch);
    }

    fn ended(&mut self) -> Option<Ended> {
        if let (0, End::Hangs(until)) = (self.batches_left, &self.end)
            && !until.load(Ordering::Relaxed)
        {
            return None;
        }
        let mut ended = self.inner.ended()?;
        match self.batches_left.checked_sub(1) {
            Some(left) => self.batches_left = left,
            None if matches!(self.end, End::Panics) => panic!("injected"),
            None => ended.result = Err(Error::Lost("injected".to_owned())),
        }
        Some(ended)
    }

    fn decode(&mut self, jobs: Vec<Decode>) {
        self.inner.decode(jobs);
    }

    /// Counts as a batch.
    fn decoded(&mut self) -> Option<Solved> {
        let mut solved = self.inner.decoded()?;
        match self.batches_left.checked_sub(1) {
            Some(left) => self.batches_left = left,
            None => solved.result = Err(Error::Lost("injected".to_owned())),
        }
        Some(solved)
    }

    fn release(&mut self, id: ResidentId) {
        self.inner.release(id);
    }

    fn memory(&self) -> Option<Memory> {
        Some(Memory {
            total: 1 << 30,
            free: 1 << 29,
        })
    }

    fn take_counts(&mut self) -> Counts {
        Counts::default()
    }
}

fn config() -> Config {
    let kernel = KernelChoice::Named(Kernel::Table);
    Config {
        backend: BackendChoice::Cpu,
        kernel,
        cpu_threads: Threads::Count(2.try_into().unwrap()),
        ..Config::default()
    }
}

/// A device over `mortals`, each of which does so many batches and loads before it is lost. In a
/// hybrid a CPU stands in front of them and is never lost.
fn device(policy: Policy, mortals: &[(usize, usize)]) -> (Device, Thread, Sums) {
    let (config, sums) = (config(), Sums::default());
    let recorder: Arc<dyn Recorder> = Arc::new(sums.clone());
    let mut opened = Vec::new();
    if policy == Policy::Hybrid {
        opened.push(open_cpu(&config, &recorder, true).unwrap());
    }
    for (index, &(batches_left, loads_left)) in mortals.iter().enumerate() {
        let open = {
            let config = config.clone();
            let lasts = (batches_left, loads_left);
            move || {
                Ok(
                    Box::new(Mortal::lasting(&config, lasts, "cuda", End::Says)?)
                        as Box<dyn Backend>,
                )
            }
        };
        opened.push(
            Member::start(&index.to_string(), config.queue_batches, &recorder, open).unwrap(),
        );
    }
    let (members, owners) = Members::over(
        config.clone(),
        recorder,
        cuda::HostMemory::default(),
        policy,
        opened,
    );
    (
        Device::over(&config, members),
        Thread { _owners: owners },
        sums,
    )
}

fn segment() -> (Bytes, Shape) {
    let length = GENERATIONS * 10 * K - 5;
    let bytes: Vec<u8> = (0..length)
        .map(|i| u8::try_from(((i * i) >> 5) & 255).unwrap())
        .collect();
    (bytes.into(), Shape::new(length.into(), K, 10).unwrap())
}

fn batch(resident: &Arc<Resident>) -> Batch {
    let task = |generation: u32| {
        let key = RowKey {
            key: 5,
            generation: generation.into(),
        };
        let rows = Rows::Seeded {
            key,
            first_seed: u32::MAX - 3,
            count: 9,
        };
        Task {
            resident: Arc::clone(resident),
            generation,
            rows,
            out: vec![BytesMut::zeroed(K as usize); 9],
            out_offset: 0,
        }
    };
    Batch {
        tasks: (0..GENERATIONS).map(task).collect(),
    }
}

async fn load(device: &Device) -> Result<Arc<Resident>, Error> {
    let (bytes, shape) = segment();
    device.load(bytes, shape).await.map(Arc::new)
}

fn blocks(done: &Done) -> Vec<Vec<BytesMut>> {
    done.batch
        .tasks
        .iter()
        .map(|task| task.out.clone())
        .collect()
}

async fn expected() -> Vec<Vec<BytesMut>> {
    let (device, _thread) = Device::open(&config(), Unrecorded).unwrap();
    let resident = load(&device).await.unwrap();
    blocks(&device.combine(batch(&resident)).await.unwrap())
}

const FOREVER: (usize, usize) = (usize::MAX, usize::MAX);
/// Longer than any call of a back end in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn generations_are_dealt_to_all_and_come_back_in_order() {
    let (device, _thread, _) = device(Policy::Deal, &[FOREVER; 3]);
    let resident = load(&device).await.unwrap();
    assert_eq!(
        (device.backend(), device.kernel(), resident.parts.len()),
        ("cuda", "table", 3)
    );
    let done = device.combine(batch(&resident)).await.unwrap();
    assert_eq!(blocks(&done), expected().await);
    // Seven generations of nine blocks: three for one back end, two for each of the others.
    let mut made: Vec<u64> = done.makers.iter().map(|maker| maker.coded_blocks).collect();
    made.sort_unstable();
    assert_eq!(made, [18, 18, 27]);
    assert_eq!(device.memory().unwrap().total, 3 << 30);
}

#[tokio::test]
async fn a_hybrid_shares_every_task_by_measured_rates() {
    let (device, _thread, _) = device(Policy::Hybrid, &[FOREVER; 2]);
    assert_eq!(device.backend(), "hybrid");
    let resident = load(&device).await.unwrap();
    for _ in 0..5 {
        let done = device.combine(batch(&resident)).await.unwrap();
        assert_eq!(blocks(&done), expected().await);
        let of = |name| {
            done.makers
                .iter()
                .filter(move |maker| maker.backend == name)
                .map(|maker| maker.coded_blocks)
                .sum::<u64>()
        };
        assert_eq!(of("cpu") + of("cuda"), 63);
    }
    let share = |cpu: f64, gpus: &[f64]| {
        let seat = |rate: f64| Arc::new(Rate(AtomicU64::new(rate.to_bits())));
        let mut set = Set::clone(&device.members.set.load());
        set.seats
            .iter_mut()
            .zip([cpu].iter().chain(gpus))
            .for_each(|(place, &rate)| place.rate = seat(rate));
        set.cpu_share()
    };
    assert_eq!(share(1.0, &[1.0, 2.0]), 0.25);
    assert_eq!(share(0.0, &[1.0, 2.0]), CPU_SHARE_AT_FIRST);
}

/// A device over one back end that is lost with its second batch.
#[cfg(feature = "cuda")]
pub(crate) async fn lose_one(
    open: impl FnOnce() -> Result<Box<dyn Backend>, Error> + Send + 'static,
    check_reason: impl Fn(&str),
) {
    let (config, sums) = (config(), Sums::default());
    let recorder: Arc<dyn Recorder> = Arc::new(sums.clone());
    let member = Member::start("0", config.queue_batches, &recorder, open).unwrap();
    let (members, owners) = Members::over(
        config.clone(),
        recorder,
        cuda::HostMemory::default(),
        Policy::Deal,
        vec![member],
    );
    let (device, _thread) = (Device::over(&config, members), Thread { _owners: owners });
    lose(&device, &sums, 63, check_reason).await;
}

/// A device over one back end that does one batch and is then lost in this way.
fn ending(name: &'static str, end: End, hang_timeout: Duration) -> (Device, Thread, Sums) {
    let (config, sums) = (
        Config {
            hang_timeout,
            ..config()
        },
        Sums::default(),
    );
    let recorder: Arc<dyn Recorder> = Arc::new(sums.clone());
    let opened = config.clone();
    let open = move || {
        Ok(Box::new(Mortal::lasting(&opened, (1, usize::MAX), name, end)?) as Box<dyn Backend>)
    };
    let member = Member::start("0", config.queue_batches, &recorder, open).unwrap();
    let (members, owners) = Members::over(
        config.clone(),
        recorder,
        cuda::HostMemory::default(),
        Policy::Deal,
        vec![member],
    );
    (
        Device::over(&config, members),
        Thread { _owners: owners },
        sums,
    )
}

#[tokio::test]
async fn a_thread_that_dies_is_a_lost_card() {
    let (device, thread, sums) = ending("cuda", End::Panics, PATIENCE);
    lose(&device, &sums, 0, |reason| assert_eq!(reason, THREAD_ENDED)).await;
    thread.close();
}

#[tokio::test]
async fn a_card_that_hangs_is_lost_and_nobody_waits_for_its_thread() {
    let until = Arc::default();
    let (device, thread, sums) = ending(
        "cuda",
        End::Hangs(Arc::clone(&until)),
        Duration::from_secs(2),
    );
    lose(&device, &sums, 0, |reason| {
        assert_eq!(reason, "it has finished no work for 2s")
    })
    .await;
    thread.close();
    until.store(true, Ordering::Relaxed);
}

#[tokio::test]
async fn nothing_takes_the_place_of_the_cpu() {
    let (device, _thread, sums) = ending("cpu", End::Panics, PATIENCE);
    let health = device.health();
    let resident = load(&device).await.unwrap();
    device.combine(batch(&resident)).await.unwrap();
    let lost = Error::Lost(THREAD_ENDED.to_owned());
    assert_eq!(
        device.combine(batch(&resident)).await.unwrap_err().error,
        lost
    );
    assert_eq!(*health.borrow(), Health::Dead(THREAD_ENDED.to_owned()));
    assert_eq!(load(&device).await.unwrap_err(), lost);
    assert_eq!(sums.fallbacks(), 0);
}

/// As on a system that refuses further threads.
#[tokio::test]
async fn a_card_whose_place_the_cpu_cannot_take_is_the_end() {
    let (device, _thread, sums) = ending("cuda", End::Says, PATIENCE);
    let set = device.members.set.load_full();
    device.members.replace(
        &set,
        0,
        Err(Error::Thread("injected".to_owned())),
        "it says so",
    );
    let reason =
        "it says so; cannot fall back to the CPU: cannot start the device's thread: injected"
            .to_owned();
    assert_eq!(*device.health().borrow(), Health::Dead(reason.clone()));
    // A further loss does not improve the health.
    device.members.losses().degraded("something else");
    assert_eq!(*device.health().borrow(), Health::Dead(reason));
    assert_eq!((device.members.set.load().epoch, sums.fallbacks()), (0, 1));
}

#[tokio::test]
async fn a_dead_thread_is_noticed_though_nothing_is_asked_of_it() {
    let (device, _thread, _) = ending("cuda", End::Panics, PATIENCE);
    let (mut health, watching) = (device.health(), device.clone());
    let resident = load(&device).await.unwrap();
    device.combine(batch(&resident)).await.unwrap();
    // The caller gives up before the thread dies.
    let member = device.members.set.load().seats[0].member.clone();
    let Split { parts, .. } = device.members.set.load().split(batch(&resident));
    drop(member.combine(parts.into_iter().next().unwrap()).await);
    assert_eq!(*health.borrow_and_update(), Health::Good);
    let watch = tokio::spawn(async move { watching.watch().await });
    health.changed().await.unwrap();
    assert_eq!(*health.borrow(), Health::Degraded(THREAD_ENDED.to_owned()));
    let again = load(&device).await.unwrap();
    assert_eq!(
        blocks(&device.combine(batch(&again)).await.unwrap()),
        expected().await
    );
    watch.abort();
}

/// From the loss of one back end to blocks from the CPU: the store and the encoder rely on this.
async fn lose(device: &Device, sums: &Sums, slots: usize, check_reason: impl Fn(&str)) {
    let health = device.health();
    assert_eq!(*health.borrow(), Health::Good);
    let resident = load(device).await.unwrap();
    device.combine(batch(&resident)).await.unwrap();
    // The rates measured with one small batch may give all of the next batch to the CPU.
    device
        .members
        .set
        .load()
        .seats
        .iter()
        .for_each(|place| place.rate.0.store(1.0_f64.to_bits(), Ordering::Relaxed));
    let failed = device.combine(batch(&resident)).await.unwrap_err();
    let Error::Lost(reason) = failed.error else {
        panic!("{}", failed.error)
    };
    check_reason(&reason);
    assert_eq!(
        failed.batch.blocks(),
        slots,
        "the slots come back, unless the thread has them"
    );
    assert_eq!(*health.borrow(), Health::Degraded(reason));
    assert!(!resident.is_alive());
    assert_eq!(
        device.combine(batch(&resident)).await.unwrap_err().error,
        Error::Stale
    );
    let again = load(device).await.unwrap();
    assert!(again.is_alive());
    let done = device.combine(batch(&again)).await.unwrap();
    assert_eq!(blocks(&done), expected().await);
    assert!(done.makers.iter().any(|maker| maker.backend == "cpu"));
    assert_eq!(sums.fallbacks(), 1);
}

#[tokio::test]
async fn the_cpu_takes_the_place_of_what_is_lost() {
    let mortal = (1, usize::MAX);
    for (policy, mortals) in [
        (Policy::Deal, vec![mortal]),
        (Policy::Deal, vec![FOREVER, mortal, FOREVER]),
        (Policy::Hybrid, vec![mortal]),
        (Policy::Hybrid, vec![FOREVER, mortal]),
    ] {
        let (device, thread, sums) = device(policy, &mortals);
        lose(&device, &sums, 63, |reason| assert_eq!(reason, "injected")).await;
        thread.close();
    }
}

#[tokio::test]
async fn one_after_the_other_can_be_lost() {
    let (device, _thread, _) = device(Policy::Deal, &[(1, usize::MAX), (2, usize::MAX)]);
    for _ in 0..3 {
        let resident = load(&device).await.unwrap();
        while device.combine(batch(&resident)).await.is_ok() {
            let all_cpu = device
                .members
                .set
                .load()
                .seats
                .iter()
                .all(|seat| seat.member.backend == "cpu");
            if all_cpu {
                return;
            }
        }
    }
    panic!("the CPU has not taken over");
}

#[tokio::test]
async fn a_loss_while_loading_is_noticed_too() {
    let (device, _thread, _) = device(Policy::Deal, &[(usize::MAX, 1)]);
    load(&device).await.unwrap();
    assert_eq!(
        load(&device).await.unwrap_err(),
        Error::Lost("injected".to_owned())
    );
    let resident = load(&device).await.unwrap();
    assert_eq!(
        blocks(&device.combine(batch(&resident)).await.unwrap()),
        expected().await
    );
}

#[tokio::test]
async fn generations_are_decoded_by_all_in_turn_and_by_the_cpu_after_a_loss() {
    let jobs: Vec<Decode> = (1..=7_u8)
        .map(|c| Decode {
            n: 1,
            coefficients: vec![c],
            payloads: vec![1; 16],
            out: vec![0; 16],
        })
        .collect();
    let (device, _thread, _) = device(Policy::Deal, &[FOREVER, (1, usize::MAX)]);
    for round in 0..3 {
        match device.decode(jobs.clone()).await {
            Ok(decoded) => {
                for (decoded, job) in decoded.iter().zip(&jobs) {
                    let inverse = ncs_gf::gf256::inv(job.coefficients[0]);
                    assert_eq!(
                        (decoded.solution, &decoded.job.out),
                        (Ok(()), &vec![inverse; 16])
                    );
                }
                let makers: Vec<_> = decoded.iter().map(|decoded| decoded.backend).collect();
                assert_eq!(
                    makers[..3],
                    if round == 0 {
                        ["cuda"; 3]
                    } else {
                        ["cuda", "cpu", "cuda"]
                    }
                );
            }
            Err(undecoded) => {
                assert_eq!(
                    (round, undecoded.error),
                    (1, Error::Lost("injected".to_owned()))
                );
                assert_eq!(undecoded.jobs.len(), 7);
                let same = |(one, other): (&Decode, &Decode)| {
                    one.coefficients == other.coefficients && one.payloads == other.payloads
                };
                assert!(undecoded.jobs.iter().zip(&jobs).all(same));
            }
        }
    }
}
