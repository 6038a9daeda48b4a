use super::*;
use crate::recorder::tests::Sums;
use crate::testing::Hoard;
use crate::{BackendChoice, Health};

/// Arithmetic whose every call fails.
#[derive(Debug)]
struct Broken;

impl Arithmetic for Broken {
    fn keep(&self, _: &[u8], _: usize) -> Result<Option<Arc<dyn Kept>>, NotKept> {
        Err(Failed("broken".to_owned()).into())
    }

    fn encode(&self, _: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Failed> {
        tasks
            .iter_mut()
            .flat_map(|task| &mut task.out)
            .for_each(|out| out.fill(0xff));
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
    let provider = GfqProvider::of(Box::new(Broken), &Config::default(), losses.clone());
    let steady = provider.get();
    let (shape, source) = (Shape::new(2, 1).unwrap(), [7; 64]);
    let encoded = |arithmetic: &dyn Arithmetic| {
        let mut out = vec![0; 33];
        arithmetic
            .encode(shape, &mut [Encode::new(shape, &source, &[3, 4], &mut out)])
            .unwrap();
        out
    };
    assert_eq!(encoded(&*steady), encoded(&cores));
    let blocks = [&source[..32], &source[32..]];
    let hashed = |arithmetic: &dyn Arithmetic| arithmetic.hash(Group::P1024, 1, &blocks).unwrap();
    assert_eq!(hashed(&*steady), hashed(&cores));
    assert_eq!(steady.holds(&[]), cores.holds(&[]));
    assert!(matches!(steady.keep(&source, 64), Ok(None)));
    // However many calls fail, it is reported once.
    let reason = "arithmetic over the prime field failed: broken".to_owned();
    assert_eq!(
        (&*losses.health().borrow(), sums.fallbacks()),
        (&Health::Degraded(reason), 1)
    );
}

#[tokio::test]
async fn a_card_that_hangs_is_given_up_and_the_cores_do_its_work() {
    let (hoard, (losses, sums)) = (Hoard::new(u64::MAX), losses());
    let config = Config {
        hang_timeout: Duration::from_millis(200),
        ..Config::default()
    };
    let provider = Arc::new(GfqProvider::of(
        Box::new(hoard.clone()),
        &config,
        losses.clone(),
    ));
    let kept = Arc::clone(&provider)
        .run(|arithmetic| arithmetic.keep(&[7; 64], 64))
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(kept.is_alive() && *losses.health().borrow() == Health::Good);
    hoard.hold(true);
    let hash =
        || Arc::clone(&provider).run(|arithmetic| arithmetic.hash(Group::P1024, 1, &[&[7; 32]]));
    // Calls that wait for the same card learn it at the same time.
    let (one, other) = tokio::join!(hash(), hash());
    let reason = "it has finished no work over the prime field for 200ms".to_owned();
    assert_eq!(
        (one, other),
        (
            Err(Error::Lost(reason.clone())),
            Err(Error::Lost(reason.clone()))
        )
    );
    assert_eq!(
        (&*losses.health().borrow(), sums.fallbacks()),
        (&Health::Degraded(reason), 1)
    );
    assert_eq!(
        hash().await.unwrap(),
        Cores::all().hash(Group::P1024, 1, &[&[7; 32]])
    );
    assert!(matches!(provider.get().keep(&[7; 64], 64), Ok(None)));
    // None of it is freed: freeing could hang as well.
    assert!(!kept.is_alive());
    drop(kept);
    assert_eq!((hoard.used(), hoard.calls()), (64, 2));
    hoard.hold(false);
}

#[test]
fn a_card_hangs_if_it_ends_nothing_while_something_is_under_way() {
    let watch = Watch {
        losses: losses().0,
        calls: Mutex::default(),
    };
    let (start, limit) = (Instant::now(), Duration::from_secs(10));
    let later = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(
        watch.patience(later(100), limit),
        limit,
        "nothing is asked of it"
    );
    let first = watch.begin(later(100)).unwrap();
    let second = watch.begin(later(109)).unwrap();
    assert_eq!(watch.patience(later(109), limit), Duration::from_secs(1));
    assert_eq!(watch.judge(later(109), limit), Ok(()));
    // A call that ends shows that the card works.
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
    let config = |backend| Config {
        backend,
        gpus: crate::Gpus::List(vec![u16::MAX]),
        ..Config::default()
    };
    for backend in [BackendChoice::Cpu, BackendChoice::Auto] {
        let provider = GfqProvider::new(&config(backend), cuda::HostMemory::default(), losses().0);
        assert!(Arc::ptr_eq(&provider.open().unwrap(), &provider.get()));
    }
    // No host has a GPU of this number.
    let provider = GfqProvider::new(
        &config(BackendChoice::Cuda),
        cuda::HostMemory::default(),
        losses().0,
    );
    assert!(provider.open().is_err());
    assert!(Arc::ptr_eq(&provider.get(), &provider.get()));
}
