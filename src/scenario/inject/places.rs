//! Instructions as a scenario names them to their addresses.

use unwindlab_guest_kernel::lines::NO_LINES;

use super::{Place as WrittenPlace, boundaries};
use crate::plan::Place;
use crate::scenario::error::Complaints;
use crate::scenario::located::{At, Location};
use crate::scenario::place::{KernelPlace, SourceLine, SymbolOffset};
use crate::scenario::resolve::{KernelSymbols, near};

pub(super) fn place(
    at: &At<WrittenPlace>,
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> Option<Place> {
    Some(match &**at {
        WrittenPlace::Kernel(place) => Place::Kernel {
            address: instruction(place, at.location(), symbols, complaints)?,
        },
        // The agent names its text only once it runs; an executor that does not find the name
        // says so.
        WrittenPlace::User(place) => Place::User {
            symbol: place.symbol.clone(),
            offset: place.offset,
        },
    })
}

/// The address of an instruction of the kernel that no scenario names.
///
/// # Errors
/// In one line, why there is none.
pub fn address_of(place: &KernelPlace, symbols: &dyn KernelSymbols) -> Result<u64, String> {
    if matches!(place, KernelPlace::Line(_)) && symbols.lines().is_none() {
        return Err(NO_LINES.to_owned());
    }
    let mut complaints = Complaints::new("");
    let address = instruction(place, Location::default(), symbols, &mut complaints);
    match complaints.into_errors().0.first() {
        Some(error) => Err(error.message.clone()),
        None => address.ok_or_else(|| "it has no address".to_owned()),
    }
}

fn instruction(
    place: &KernelPlace,
    location: Location,
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> Option<u64> {
    match place {
        KernelPlace::Symbol(place) => kernel_address(place, location, symbols, complaints),
        KernelPlace::Line(line) => line_address(line, location, symbols, complaints),
    }
}

pub(in crate::scenario) fn symbol_address(
    name: &str,
    location: Location,
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> Option<u64> {
    match symbols.addresses(name).as_slice() {
        [address] => Some(*address),
        [] => {
            let near = near(name, symbols);
            complaints.add(location, format!("the kernel has no symbol `{name}`{near}"));
            None
        }
        many => {
            let count = many.len();
            complaints.add(
                location,
                format!("the kernel has {count} symbols `{name}`, expected a name that is unique"),
            );
            None
        }
    }
}

/// The kernel has lines: one without is no kernel for the scenario. A line that was inlined in several places has several beginnings: the user's choice.
fn line_address(
    place: &SourceLine,
    location: Location,
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> Option<u64> {
    let SourceLine { file, line } = place;
    let lines = symbols.lines()?;
    match lines.place(file, *line).as_deref() {
        Ok([address]) => Some(*address),
        Ok(many) => {
            let name = |address: &u64| match symbols.resolve(*address) {
                Some((symbol, offset)) => format!("{symbol}+{offset:#x}"),
                None => format!("{address:#x}"),
            };
            let places: Vec<String> = many.iter().map(name).collect();
            complaints.add(
                location,
                format!(
                    "{file}:{line} is in {} places, expected one of {}",
                    places.len(),
                    places.join(", ")
                ),
            );
            None
        }
        Err(reason) => {
            complaints.add(location, reason.clone());
            None
        }
    }
}

pub(super) fn kernel_address(
    place: &SymbolOffset,
    location: Location,
    symbols: &dyn KernelSymbols,
    complaints: &mut Complaints<'_>,
) -> Option<u64> {
    let name = &place.symbol;
    let address = symbol_address(name, location, symbols, complaints)?;
    let size = symbols.size(name).unwrap_or(0);
    if place.offset > 0 && place.offset >= size {
        complaints.add(
            location,
            format!(
                "found offset {:#x}, but `{name}` has {size:#x} bytes",
                place.offset
            ),
        );
        return None;
    }
    if let Some(near) = boundaries::not_one(address, place.offset, symbols) {
        complaints.add(
            location,
            format!(
                "found {name}+{:#x}, which is inside an instruction, expected a boundary such as {near}",
                place.offset
            ),
        );
        return None;
    }
    address.checked_add(place.offset)
}
