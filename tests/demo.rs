//! The demo as a new user runs it: three peers on paths that lose a tenth of their datagrams get
//! exactly the origin's bytes.

use std::net::{Ipv4Addr, SocketAddr};

use ncserverd::lab::clip;
use ncserverd::lab::demo::{Options, run};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_is_repaired_by_coding() {
    let report = run(Options {
        seed: 1,
        quiet: true,
        ..Options::default()
    })
    .await
    .unwrap();
    assert!(report.is_complete(), "{report}");
    assert_eq!(report.rows.len(), 3);
    let bytes: usize = clip::segments().map(|file| file.bytes.len()).sum();
    for row in &report.rows {
        assert_eq!(row.bytes, u64::try_from(bytes).unwrap(), "{report}");
        assert!(row.repaired > 0 && row.innovative <= row.blocks, "{report}");
        assert!(row.loss > 0.02 && row.loss < 0.25, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_loss_nothing_needs_repair() {
    let gateway = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let report = run(Options {
        peers: 1,
        loss: 0.0,
        gateway,
        quiet: true,
        ..Options::default()
    })
    .await
    .unwrap();
    assert!(report.is_complete(), "{report}");
    assert_eq!(report.rows[0].repaired, 0, "{report}");
}
