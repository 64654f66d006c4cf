//! Addresses of the instructions that a scenario names.

use unwindlab_guest_kernel::lines::{LineError, NO_LINES};

use super::{TriggerPlace, boundaries};
use crate::error::Complaints;
use crate::located::At;
use crate::place::{KernelPlace, SourceLine, SymbolOffset};
use crate::resolve::{KernelSymbols, near};
use unwindlab_engine::plan::CodePlace;

/// Why a place is not one instruction of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the variant's message says what its fields are"
)]
pub enum PlaceError {
    /// No such symbol.
    #[error("the kernel has no symbol `{name}`{near}")]
    NoSymbol { name: String, near: String },
    /// Several symbols of that name.
    #[error("the kernel has {count} symbols `{name}`, expected a name that is unique")]
    ManySymbols { name: String, count: usize },
    /// The offset is behind the end of the function.
    #[error("found offset {offset:#x}, but `{name}` has {size:#x} bytes")]
    BeyondEnd {
        name: String,
        offset: u64,
        size: u64,
    },
    /// No instruction begins at the offset.
    #[error(
        "found {name}+{offset:#x}, which is inside an instruction, expected a boundary such as {near}"
    )]
    InsideInstruction {
        name: String,
        offset: u64,
        near: String,
    },
    /// The kernel was built without DWARF.
    #[error("{NO_LINES}")]
    NoLines,
    /// No instruction begins the line.
    #[error(transparent)]
    Line(#[from] LineError),
    /// The line was inlined in several places.
    #[error("{line} is in {} places, expected one of {}", places.len(), places.join(", "))]
    ManyPlaces {
        line: SourceLine,
        places: Vec<String>,
    },
}

/// Complains if there is no such place.
pub(super) fn place(
    at: &At<TriggerPlace>,
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> Option<CodePlace> {
    Some(match &**at {
        TriggerPlace::Kernel(place) => CodePlace::Kernel {
            address: complaints.accept(at.location(), address_of(place, symbols))?,
        },
        // The agent announces its symbols only once it runs; the executor reports a missing one.
        TriggerPlace::User(place) => CodePlace::User {
            symbol: place.symbol.clone(),
            offset: place.offset,
        },
        TriggerPlace::Watch(watched) => complaints.accept(at.location(), watched.place(symbols))?,
    })
}

/// The address of an instruction of the kernel.
///
/// # Errors
/// [`PlaceError`].
pub fn address_of(place: &KernelPlace, symbols: &dyn KernelSymbols) -> Result<u64, PlaceError> {
    match place {
        KernelPlace::Symbol(place) => instruction(place, symbols),
        KernelPlace::Line(line) => line_address(line, symbols),
    }
}

/// The address of a symbol.
pub(crate) fn symbol_address(name: &str, symbols: &dyn KernelSymbols) -> Result<u64, PlaceError> {
    let name_of = || name.to_owned();
    match symbols.addresses(name).as_slice() {
        [address] => Ok(*address),
        [] => Err(PlaceError::NoSymbol {
            name: name_of(),
            near: near(name, symbols),
        }),
        many => Err(PlaceError::ManySymbols {
            name: name_of(),
            count: many.len(),
        }),
    }
}

/// A line that was inlined in several places has several addresses: the user must choose.
fn line_address(line: &SourceLine, symbols: &dyn KernelSymbols) -> Result<u64, PlaceError> {
    let lines = symbols.lines().ok_or(PlaceError::NoLines)?;
    let found = lines.place(&line.file, line.line)?;
    if let [address] = found.as_slice() {
        return Ok(*address);
    }
    let name = |address: &u64| match symbols.resolve(*address) {
        Some((symbol, offset)) => format!("{symbol}+{offset:#x}"),
        None => format!("{address:#x}"),
    };
    Err(PlaceError::ManyPlaces {
        line: line.clone(),
        places: found.iter().map(name).collect(),
    })
}

fn instruction(place: &SymbolOffset, symbols: &dyn KernelSymbols) -> Result<u64, PlaceError> {
    let (name, offset) = (&place.symbol, place.offset);
    let start = symbol_address(name, symbols)?;
    let size = symbols.size(name).unwrap_or(0);
    let is_inside = offset == 0 || offset < size;
    let address = start.checked_add(offset).filter(|_| is_inside);
    let address = address.ok_or_else(|| PlaceError::BeyondEnd {
        name: name.clone(),
        offset,
        size,
    })?;
    match boundaries::not_one(start, offset, symbols) {
        None => Ok(address),
        Some(near) => Err(PlaceError::InsideInstruction {
            name: name.clone(),
            offset,
            near,
        }),
    }
}
