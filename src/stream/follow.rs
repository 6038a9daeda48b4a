//! The task of a publishing point: looks at live playlists when they are due, or listens to a
//! folder.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, mpsc};

use super::point::Point;
use crate::ingest::planner::Cut;
use crate::ingest::{Change, ChangeKind, ObjectPath};
use crate::supervise::ServerPart;

/// The changes of a folder, locked by the follower.
type Changes = Arc<Mutex<Option<mpsc::Receiver<Change>>>>;

/// Runs until it is aborted.
pub(super) async fn follow(point: Arc<Point>, changes: Changes) {
    let mut changes = changes.lock_owned().await;
    let is_told = changes.is_some();
    let mut sweep = tokio::time::interval(SWEEP);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let next_look = if is_told {
            None
        } else {
            point.planner().next_look()
        };
        let next_look = next_look.unwrap_or_else(|| Instant::now() + IDLE);
        tokio::select! {
            change = next(&mut changes) => match change {
                Some(change) => heed(&point, change, Instant::now()),
                None => *changes = None,
            },
            () = tokio::time::sleep_until(next_look.into()), if !is_told => {
                for path in point.planner().due(Instant::now()) {
                    refresh(&point, path, false);
                }
            }
            () = point.planned.notified() => {}
            _ = sweep.tick() => point.catalogue().sweep(Instant::now()),
        }
    }
}

fn refresh(point: &Arc<Point>, path: ObjectPath, has_changed: bool) {
    let refresh = Arc::clone(point).refresh(path, has_changed);
    tokio::spawn(point.supervisor().contained(ServerPart::Fetch, refresh));
}

async fn next(changes: &mut Option<mpsc::Receiver<Change>>) -> Option<Change> {
    match changes {
        Some(changes) => changes.recv().await,
        None => std::future::pending().await,
    }
}

/// Reacts to a change in a folder. Segments that a live playlist will list are left to the
/// playlist, which is written after them.
fn heed(point: &Arc<Point>, change: Change, now: Instant) {
    let Change { path, kind } = change;
    let is_mutable = point.is_mutable(&path);
    match kind {
        ChangeKind::Present | ChangeKind::Complete if is_mutable => {
            refresh(point, path, true);
        }
        ChangeKind::Present => {}
        ChangeKind::Complete => {
            point.invalidate(&path, now);
            if point.settings().prefetch > 0 && !point.planner().governs(path.parent()) {
                point.prefetch(vec![Cut { path, range: None }], None);
            }
        }
        ChangeKind::Written if is_mutable => point.catalogue().distrust(&path),
        ChangeKind::Written => point.invalidate(&path, now),
        ChangeKind::Gone if is_mutable => point.drop_document(&path, now),
        ChangeKind::Gone => point.let_go(&Cut { path, range: None }, now),
    }
}

const SWEEP: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(3600);
