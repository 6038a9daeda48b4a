//! Portions of a file from who reads them, through a crew, to who writes them.

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;

use ncs_device::portions::{Demand, Portion, Work};

use crate::Error;
use crate::crew::{Choice, Crew};

/// Opens a crew for portions of a file.
pub(super) fn crew_of(choice: Choice, demand: &Demand) -> Result<Crew, Error> {
    Crew::open(choice, demand).map_err(|error| Error::Device {
        backend: choice.backend.name(),
        error,
    })
}

/// Has `read` say what is in a portion and what is to be made of it, until there is nothing more,
/// and hands what was made to `write`, in this order, with what `read` had to say about it. While
/// portions are coded and written, others are read.
///
/// Portions have as much memory as `demand` says, which is used again.
pub(super) fn flow<T: Send>(
    crew: &Crew,
    demand: &Demand,
    mut read: impl FnMut(&mut Portion) -> Result<Option<T>, Error> + Send,
    write: impl FnMut(&Portion, T) -> Result<(), Error>,
) -> Result<(), Error> {
    let (spare_in, spare) = mpsc::channel();
    let (told_in, told) = mpsc::channel();
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut made = 0;
            let result = loop {
                // Without who writes there is nothing more to do.
                let Some(mut portion) = next(crew, demand, &spare, &mut made) else {
                    break Ok(());
                };
                match read(&mut portion) {
                    Ok(Some(told)) => {
                        let _ = told_in.send(told);
                        crew.begin(portion);
                    }
                    Ok(None) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            crew.close();
            result
        });
        drain(crew, &told, spare_in, write)?;
        reader.join().expect("reading does not panic")
    })
}

/// A portion that is free, or a new one while there may be more.
fn next(
    crew: &Crew,
    demand: &Demand,
    spare: &Receiver<Portion>,
    made: &mut usize,
) -> Option<Portion> {
    match spare.try_recv() {
        Ok(portion) => Some(portion),
        Err(TryRecvError::Empty) if *made < crew.portions() => {
            *made += 1;
            let (input, output) = (
                crew.memory(demand.input_bytes),
                crew.memory(demand.output_bytes),
            );
            Some(Portion {
                work: Work::Nothing,
                input,
                output,
            })
        }
        Err(_) => spare.recv().ok(),
    }
}

/// Takes the sender, which is gone when this ends: the other side ends then, too.
#[expect(
    clippy::needless_pass_by_value,
    reason = "dropping it is what ends the reader"
)]
fn drain<T>(
    crew: &Crew,
    told: &Receiver<T>,
    spare: Sender<Portion>,
    mut write: impl FnMut(&Portion, T) -> Result<(), Error>,
) -> Result<(), Error> {
    while let Some(portion) = crew.next() {
        write(
            &portion,
            told.recv().expect("something was told of every portion"),
        )?;
        let _ = spare.send(portion);
    }
    Ok(())
}
