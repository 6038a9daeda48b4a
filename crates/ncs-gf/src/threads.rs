//! Work that threads share, where there are threads.

/// Works on all parts: on the first in this thread, and on each further one in a thread of its own.
/// Returns what comes of each, in their order. WebAssembly has no threads; there the parts are done
/// one after the other, so none may wait for another.
pub(crate) fn share<T: Send, R: Send>(
    parts: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let mut parts = parts.into_iter();
    #[cfg(not(target_family = "wasm"))]
    {
        let Some(own) = parts.next() else {
            return Vec::new();
        };
        let work = &work;
        std::thread::scope(|scope| {
            let others: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
            let mut done = vec![work(own)];
            let others = others.into_iter().map(|thread| thread.join());
            done.extend(others.map(|done| done.expect("a part does not panic")));
            done
        })
    }
    #[cfg(target_family = "wasm")]
    parts.by_ref().map(work).collect()
}
