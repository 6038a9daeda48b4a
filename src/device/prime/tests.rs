use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::*;
use crate::codec::rlnc_q::Place;
use crate::device::recorder::tests::Sums;
use crate::device::{BackendChoice, Health};

/// One that keeps sources as a card does. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hoard(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Bytes of what is kept, and how many there is room for.
    used: AtomicU64,
    room: AtomicU64,
    is_lost: AtomicBool,
    /// Tasks whose sources were kept, and tasks whose sources came with them.
    kept: AtomicUsize,
    brought: AtomicUsize,
    /// Calls that have begun, and whether they are to wait.
    gate: Mutex<(usize, bool)>,
    moved: Condvar,
}

#[derive(Debug)]
struct Treasure {
    source: Vec<u8>,
    shared: Arc<Shared>,
}

impl Kept for Treasure {
    fn bytes(&self) -> u64 {
        self.source.len() as u64
    }

    fn is_alive(&self) -> bool {
        !self.shared.is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for Treasure {
    fn drop(&mut self) {
        self.shared.used.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

impl Hoard {
    /// With room for so many bytes.
    pub(crate) fn new(room: u64) -> Self {
        let hoard = Self::default();
        hoard.0.room.store(room, Ordering::Relaxed);
        hoard
    }

    /// Bytes that are kept.
    pub(crate) fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Tasks whose sources were kept, and tasks whose sources came with them.
    pub(crate) fn tasks(&self) -> (usize, usize) {
        (self.0.kept.load(Ordering::Relaxed), self.0.brought.load(Ordering::Relaxed))
    }

    /// From now on nothing works, and nothing is kept.
    pub(crate) fn lose(&self) {
        self.0.is_lost.store(true, Ordering::Relaxed);
    }

    /// Whether calls wait before they begin.
    pub(crate) fn hold(&self, is_held: bool) {
        self.gate().1 = is_held;
        self.0.moved.notify_all();
    }

    /// Calls that have begun.
    pub(crate) fn calls(&self) -> usize {
        self.gate().0
    }

    fn pass(&self) {
        let mut gate = self.gate();
        gate.0 += 1;
        drop(self.0.moved.wait_while(gate, |(_, is_held)| *is_held).unwrap());
    }

    fn gate(&self) -> MutexGuard<'_, (usize, bool)> {
        self.0.gate.lock().unwrap()
    }
}

impl Arithmetic for Hoard {
    fn keep(&self, source: &[u8], padded: usize) -> Result<Option<Arc<dyn Kept>>, NotKept> {
        if self.0.is_lost.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (bytes, room) = (padded as u64, self.0.room.load(Ordering::Relaxed));
        let grown = |used| Some(used + bytes).filter(|used| *used <= room);
        if self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).is_err() {
            return Err(NotKept::Memory(bytes));
        }
        let mut source = source.to_vec();
        source.resize(padded, 0);
        Ok(Some(Arc::new(Treasure { source, shared: Arc::clone(&self.0) })))
    }

    fn encode(&self, shape: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Failed> {
        self.pass();
        if self.0.is_lost.load(Ordering::Relaxed) {
            tasks.iter_mut().flat_map(|task| &mut task.out).for_each(|out| out.fill(0xff));
            return Err(Failed("lost".to_owned()));
        }
        for Encode { source, kept, rows, out } in tasks {
            let own = kept.map(|Place { kept, offset }| {
                let kept: &dyn Any = kept;
                &kept.downcast_ref::<Treasure>().unwrap().source[offset..offset + shape.source_bytes()]
            });
            let count = if own.is_some() { &self.0.kept } else { &self.0.brought };
            count.fetch_add(1, Ordering::Relaxed);
            let out = out.iter_mut().map(|out| &mut **out).collect();
            let task = Encode { source: own.unwrap_or(source), kept: None, rows, out };
            Cores::all().encode(shape, &mut [task])?;
        }
        Ok(())
    }

    fn recode(&self, shape: Shape, tasks: &mut [Recode<'_>]) -> Result<(), Failed> {
        Cores::all().recode(shape, tasks)
    }

    fn decode(&self, shape: Shape, tasks: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Failed> {
        Cores::all().decode(shape, tasks)
    }

    fn hash(&self, group: Group, words: usize, blocks: &[&[u8]]) -> Result<Vec<u8>, Failed> {
        self.pass();
        Cores::all().hash(group, words, blocks)
    }

    fn holds(&self, batches: &[Batch<'_>]) -> Result<Vec<bool>, Failed> {
        Cores::all().holds(batches)
    }
}

/// One that does nothing right.
#[derive(Debug)]
struct Broken;

impl Arithmetic for Broken {
    fn keep(&self, _: &[u8], _: usize) -> Result<Option<Arc<dyn Kept>>, NotKept> {
        Err(Failed("broken".to_owned()).into())
    }

    fn encode(&self, _: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Failed> {
        tasks.iter_mut().flat_map(|task| &mut task.out).for_each(|out| out.fill(0xff));
        Err(Failed("broken".to_owned()))
    }

    fn recode(&self, _: Shape, _: &mut [Recode<'_>]) -> Result<(), Failed> {
        Err(Failed("broken".to_owned()))
    }

    fn decode(&self, _: Shape, _: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Failed> {
        Err(Failed("broken".to_owned()))
    }

    fn hash(&self, _: Group, _: usize, _: &[&[u8]]) -> Result<Vec<u8>, Failed> {
        Err(Failed("broken".to_owned()))
    }

    fn holds(&self, _: &[Batch<'_>]) -> Result<Vec<bool>, Failed> {
        Err(Failed("broken".to_owned()))
    }
}

#[test]
fn what_fails_is_done_by_the_cores() {
    let cores = Cores::new(NonZeroUsize::MIN);
    let (losses, sums) = losses();
    let prime = Prime::of(Box::new(Broken), &Config::default(), losses.clone());
    let steady = prime.get();
    let (shape, source) = (Shape::new(2, 1).unwrap(), [7; 64]);
    let encoded = |arithmetic: &dyn Arithmetic| {
        let mut out = vec![0; 33];
        arithmetic.encode(shape, &mut [Encode::new(shape, &source, &[3, 4], &mut out)]).unwrap();
        out
    };
    assert_eq!(encoded(&*steady), encoded(&cores));
    let blocks = [&source[..32], &source[32..]];
    let hashed = |arithmetic: &dyn Arithmetic| arithmetic.hash(Group::P1024, 1, &blocks).unwrap();
    assert_eq!(hashed(&*steady), hashed(&cores));
    assert_eq!(steady.holds(&[]), cores.holds(&[]));
    assert!(matches!(steady.keep(&source, 64), Ok(None)));
    // However much fails, it is said once.
    let reason = "arithmetic over the prime field failed: broken".to_owned();
    assert_eq!((&*losses.health().borrow(), sums.fallbacks()), (&Health::Degraded(reason), 1));
}

#[tokio::test]
async fn a_card_that_hangs_is_given_up_and_the_cores_do_its_work() {
    let (hoard, (losses, sums)) = (Hoard::new(u64::MAX), losses());
    let config = Config { hang_timeout: Duration::from_millis(200), ..Config::default() };
    let prime = Arc::new(Prime::of(Box::new(hoard.clone()), &config, losses.clone()));
    let kept = Arc::clone(&prime).run(|arithmetic| arithmetic.keep(&[7; 64], 64)).await.unwrap().unwrap().unwrap();
    assert!(kept.is_alive() && *losses.health().borrow() == Health::Good);
    hoard.hold(true);
    let hash = || Arc::clone(&prime).run(|arithmetic| arithmetic.hash(Group::P1024, 1, &[&[7; 32]]));
    // Those that wait for the same card are told at the same time.
    let (one, other) = tokio::join!(hash(), hash());
    let reason = "it has finished no work over the prime field for 200ms".to_owned();
    assert_eq!((one, other), (Err(Error::Lost(reason.clone())), Err(Error::Lost(reason.clone()))));
    assert_eq!((&*losses.health().borrow(), sums.fallbacks()), (&Health::Degraded(reason), 1));
    assert_eq!(hash().await.unwrap(), Cores::all().hash(Group::P1024, 1, &[&[7; 32]]));
    assert!(matches!(prime.get().keep(&[7; 64], 64), Ok(None)));
    // Nothing of it is freed: whoever tried that might hang as well.
    assert!(!kept.is_alive());
    drop(kept);
    assert_eq!((hoard.used(), hoard.calls()), (64, 2));
    hoard.hold(false);
}

#[test]
fn a_card_hangs_if_it_ends_nothing_while_something_is_under_way() {
    let watch = Watch { losses: losses().0, calls: Mutex::default() };
    let (start, limit) = (Instant::now(), Duration::from_secs(10));
    let later = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(watch.patience(later(100), limit), limit, "nothing is asked of it");
    let first = watch.begin(later(100)).unwrap();
    let second = watch.begin(later(109)).unwrap();
    assert_eq!(watch.patience(later(109), limit), Duration::from_secs(1));
    assert_eq!(watch.judge(later(109), limit), Ok(()));
    // One that ends is a sign of life.
    watch.calls().moved = Some(later(109));
    assert_eq!(watch.judge(later(118), limit), Ok(()));
    assert!(watch.judge(later(119), limit).is_err());
    assert!(watch.begin(later(120)).is_none());
    drop((first, second));
    assert_eq!(watch.judge(later(300), limit), Ok(()));
}

fn losses() -> (Losses, Sums) {
    let sums = Sums::default();
    (Losses::new(Arc::new(sums.clone())), sums)
}

#[test]
fn it_is_opened_once_and_the_cpu_is_there_where_nothing_else_is() {
    let config = |backend| Config { backend, gpus: crate::device::Gpus::List(vec![u16::MAX]), ..Config::default() };
    for backend in [BackendChoice::Cpu, BackendChoice::Auto] {
        let prime = Prime::new(&config(backend), cuda::HostMemory::default(), losses().0);
        assert!(Arc::ptr_eq(&prime.open().unwrap(), &prime.get()));
    }
    // A number that no host has.
    let prime = Prime::new(&config(BackendChoice::Cuda), cuda::HostMemory::default(), losses().0);
    assert!(prime.open().is_err());
    assert!(Arc::ptr_eq(&prime.get(), &prime.get()));
}
