//! Outer machines that are saved, so that the next command goes on from one instead of booting.
//!
//! There are two kinds. A *bare* one has booted and knows no kernel under test; it serves every kernel. One *with guests* was
//! used: the guests of a kernel wait in it for their next trial, as they do between two trials of one command.
//!
//! QEMU writes all of a machine's state to one file, RAM to fixed places (capability `mapped-ram`), and reads it back before the machine goes
//! on. Meanwhile the file is compared with what was written; nothing is asked of the machine before that.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use unwindlab_guest_kernel::{AboutMachine, CacheError, Room, SavedMachine, SavedMachines};

use super::Names;
use super::mapped::{BLOCK, RamPlace, clear_absent_pages};
use super::qemu::{OuterMachine, inherited_path};
use crate::interrupt::Interrupt;
use crate::qmp::{Qmp, QmpError};

/// QEMU's set of file descriptors that a machine is read from.
const READ: u32 = 1;
/// The first of those that it may be written to.
const WRITE: u32 = 2;

/// Why a machine could not be saved.
#[derive(Debug, thiserror::Error)]
pub(super) enum SaveError {
    /// QEMU could not write it.
    #[error(transparent)]
    Qemu(#[from] QmpError),
    /// The cache could not take it.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// Its file cannot be cleared of pages that are zero.
    #[error("no hole can be made in its file: {0}")]
    Clear(#[source] io::Error),
    /// There is no room for it.
    #[error(transparent)]
    NoRoom(CacheError),
    /// It was saved as often as one command may.
    #[error("it was saved {} times", Saving::STATES)]
    Often,
}

/// What a machine can be saved with.
#[derive(Debug)]
pub(super) struct Saving {
    machines: SavedMachines,
    /// QEMU's monitor, until it is first used and after.
    monitor: Monitor,
    /// Where states can be written, with QEMU's set of each.
    rooms: Vec<(u32, Room)>,
    /// Why there are no more of them, until it is told.
    no_room: Option<CacheError>,
    interrupt: Interrupt,
    /// Keeps what was written.
    keeping: Option<JoinHandle<Result<(), SaveError>>>,
    /// RAM of the machine.
    memory_mib: u32,
}

#[derive(Debug)]
enum Monitor {
    Unused(UnixStream),
    Open(Qmp),
    Gone,
}

impl Saving {
    /// How many states one command may write.
    const STATES: u32 = 2;

    /// Of a machine that is about to be started: its options, the files that it inherits, and what saves it.
    /// `from` is the state that it goes on from.
    pub(super) fn prepare(
        machines: &SavedMachines,
        from: Option<&SavedMachine>,
        outer: &OuterMachine,
        interrupt: &Interrupt,
    ) -> io::Result<(Self, Inherited)> {
        let (monitor, end) = UnixStream::pair()?;
        let mut inherited = Inherited {
            options: vec![
                ("-global", "migration.mapped-ram=on".to_owned()),
                (
                    "-chardev",
                    format!("socket,id=monitor,fd={}", end.as_raw_fd()),
                ),
                ("-mon", "chardev=monitor,mode=control".to_owned()),
            ],
            monitor: end,
            files: Vec::new(),
        };
        if let Some(from) = from {
            inherited.go_on_from(from, outer.memory_mib)?;
        }
        let mut rooms = Vec::new();
        let mut no_room = None;
        for set in WRITE..WRITE + Self::STATES {
            match machines.room().and_then(|room| Ok((room.file()?, room))) {
                Ok((file, room)) => {
                    inherited.add(set, file);
                    rooms.push((set, room));
                }
                Err(error) => {
                    no_room = Some(error);
                    break;
                }
            }
        }
        let saving = Self {
            machines: machines.clone(),
            monitor: Monitor::Unused(monitor),
            rooms,
            no_room,
            interrupt: interrupt.clone(),
            keeping: None,
            memory_mib: outer.memory_mib,
        };
        Ok((saving, inherited))
    }

    /// Writes the machine's state, which stops it, and has it kept in the background. The machine stays stopped.
    pub(super) fn save(&mut self, id: String, about: AboutMachine) -> Result<(), SaveError> {
        let (set, room) = self.room()?;
        let interrupt = self.interrupt.clone();
        self.monitor()?.save_to(set, &interrupt)?;
        self.wait()?;
        let (machines, mib) = (self.machines.clone(), self.memory_mib);
        self.keeping = Some(thread::spawn(move || {
            clear_absent_pages(&room.written()?, mib).map_err(SaveError::Clear)?;
            Ok(machines.keep(&id, room, about)?)
        }));
        Ok(())
    }

    fn room(&mut self) -> Result<(u32, Room), SaveError> {
        self.rooms.pop().ok_or_else(|| match self.no_room.take() {
            Some(reason) => SaveError::NoRoom(reason),
            None => SaveError::Often,
        })
    }

    /// Whether the state of this name was asked for before.
    pub(super) fn asked_before(&self, id: &str) -> bool {
        self.machines.asked_before(id).unwrap_or(false)
    }

    /// Removes what is saved of this machine. What cannot be removed is no worse than before.
    pub(super) fn forget(&mut self, names: &Names) {
        let _ = self.wait();
        for id in names.with_guests.iter().chain([&names.bare]) {
            let _ = self.machines.remove(id);
        }
    }

    /// Has the machine run again.
    pub(super) fn go_on(&mut self) -> Result<(), QmpError> {
        self.monitor()?.go_on()
    }

    /// Waits until what was written is kept, unless the user wants to stop: what is not kept then is removed another time.
    pub(super) fn wait(&mut self) -> Result<(), SaveError> {
        if self.interrupt.is_set() {
            return Ok(());
        }
        match self.keeping.take().map(JoinHandle::join) {
            Some(Ok(kept)) => kept,
            // A thread that panicked kept nothing.
            Some(Err(_)) | None => Ok(()),
        }
    }

    fn monitor(&mut self) -> Result<&mut Qmp, QmpError> {
        self.monitor = match std::mem::replace(&mut self.monitor, Monitor::Gone) {
            Monitor::Unused(stream) => Monitor::Open(Qmp::open(stream)?),
            other => other,
        };
        match &mut self.monitor {
            Monitor::Open(qmp) => Ok(qmp),
            _ => Err(QmpError::Closed),
        }
    }
}

/// What QEMU inherits for its states.
#[derive(Debug)]
pub(super) struct Inherited {
    pub(super) options: Vec<(&'static str, String)>,
    monitor: UnixStream,
    files: Vec<File>,
}

impl Inherited {
    /// Has it go on from a state. Of one with guests a trial touches little; a guest that boots touches most of a bare one's RAM, which is
    /// faster with huge pages, as no file has them.
    fn go_on_from(&mut self, state: &SavedMachine, mib: u32) -> io::Result<()> {
        self.options
            .push(("-incoming", format!("file:/dev/fdset/{READ}")));
        let place = match state.about.guests {
            0 => None,
            _ => RamPlace::find(&state.file, mib)?,
        };
        let Some(place) = place else {
            self.add(READ, state.file.try_clone()?);
            return Ok(());
        };
        self.add(READ, place.stream(&state.file)?);
        let file = state.file.try_clone()?;
        let memory = format!(
            "memory-backend-file,id={BLOCK},size={},offset={},mem-path={},readonly=on,rom=off",
            place.len,
            place.pages,
            inherited_path(file.as_fd()),
        );
        self.options.push(("-object", memory));
        self.options
            .push(("-machine", format!("memory-backend={BLOCK}")));
        self.files.push(file);
        Ok(())
    }

    fn add(&mut self, set: u32, file: File) {
        let fd = file.as_raw_fd();
        self.options.push(("-add-fd", format!("fd={fd},set={set}")));
        self.files.push(file);
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        { self.files.iter().map(File::as_fd) }.chain([self.monitor.as_fd()])
    }
}
