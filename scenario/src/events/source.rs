//! What an event counts: `nmi:nmi_handler`, `kprobe:unwind_user+0x10`, `mem:task.unwind_info.id/8:w`.

use unwindlab_abi::Watch;
use unwindlab_abi::plan::{EventSource, USER_SYMBOLS};
use unwindlab_guest_kernel::types::LayoutError;

use crate::inject::places::{PlaceError, address_of, symbol_address};
use crate::place::{KernelPlace, SymbolOffset};
use crate::resolve::KernelSymbols;

/// Software and hardware events by perf's names (`enum perf_sw_ids`, `enum perf_hw_id`).
const NAMED: &[(&str, EventSource)] = &[
    ("dummy", EventSource::Dummy),
    ("cpu-clock", EventSource::Software(0)),
    ("task-clock", EventSource::Software(1)),
    ("page-faults", EventSource::Software(2)),
    ("minor-faults", EventSource::Software(5)),
    ("major-faults", EventSource::Software(6)),
    ("alignment-faults", EventSource::Software(7)),
    ("context-switches", EventSource::Software(3)),
    ("cpu-migrations", EventSource::Software(4)),
    ("cycles", EventSource::Hardware(0)),
    ("instructions", EventSource::Hardware(1)),
];

/// The struct that `mem:task.` names a member of.
const TASK: &str = "task_struct";

/// The offset of the first instruction behind a function's ftrace site, whatever it is.
const BODY: &str = "+body";

/// Why there is no such source.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SourceError {
    /// Not the notation of any source.
    #[error(
        "found event `{name}`, expected a tracepoint such as `nmi:nmi_handler`, a probe \
         (`kprobe:FUNCTION+OFFSET`, `optprobe:FUNCTION+OFFSET`, `kretprobe:FUNCTION`, \
         `fprobe:FUNCTION`, `fprobe:FUNCTION%return`, `uprobe:SYMBOL+OFFSET`, `uretprobe:SYMBOL`), \
         a breakpoint (`breakpoint:SYMBOL+OFFSET`, `mem:SYMBOL+OFFSET/BYTES:rw`, \
         `mem:task.FIELD/BYTES:w`), or one of {known}"
    )]
    Unknown { name: String, known: String },
    /// A place in the kernel.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A member of the task.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The workloads have no such symbol.
    #[error("the workloads have no symbol `{symbol}`, expected one of {}", USER_SYMBOLS.join(", "))]
    UserSymbol { symbol: String },
    /// A place that does not return.
    #[error(
        "`{symbol}` is no function that returns, expected one such as `deep_leaf` or `descend`"
    )]
    NoReturn { symbol: String },
    /// A breakpoint of another length.
    #[error("found a breakpoint on {found} bytes, expected 1, 2, 4 or 8")]
    Bytes { found: String },
    /// The field's size is no breakpoint's length.
    #[error("{TASK}.{path} has {size} bytes, expected how many of them to watch, such as `/8`")]
    FieldSize { path: String, size: u64 },
    /// A breakpoint lies on a multiple of its length.
    #[error("{place} is not on a multiple of {bytes} bytes, which a breakpoint must be")]
    Unaligned { place: String, bytes: u8 },
    /// Each CPU has its own.
    #[error("`{symbol}` is a per-CPU variable, which has no single address to watch")]
    PerCpu { symbol: String },
}

/// The source of this name. Without symbols, while a scenario is checked, breakpoints get no
/// addresses.
pub(super) fn source(
    name: &str,
    symbols: Option<&dyn KernelSymbols>,
) -> Result<EventSource, SourceError> {
    if let Some((_, source)) = NAMED.iter().find(|(known, _)| *known == name) {
        return Ok(source.clone());
    }
    let unknown = || {
        let known: Vec<_> = NAMED.iter().map(|(name, _)| format!("`{name}`")).collect();
        SourceError::Unknown {
            name: name.escape_debug().to_string(),
            known: known.join(", "),
        }
    };
    let (kind, rest) = name.split_once(':').ok_or_else(unknown)?;
    let place = || match rest.strip_suffix(BODY) {
        Some(name) => {
            let place = name.parse::<SymbolOffset>();
            let place = place.ok().filter(|it| it.offset == 0).ok_or_else(unknown)?;
            Ok(symbols.map_or(Ok(place.clone()), |symbols| body(&place.symbol, symbols))?)
        }
        None => rest.parse::<SymbolOffset>().map_err(|_| unknown()),
    };
    // A return has no offset.
    let function = |rest: &str| {
        let place = rest.parse::<SymbolOffset>().map_err(|_| unknown())?;
        let whole = !rest.contains('+');
        whole.then_some(place).ok_or_else(unknown)
    };
    match kind {
        "kprobe" | "optprobe" => kprobe(place()?, false, kind == "optprobe", symbols),
        "kretprobe" => kprobe(function(rest)?, true, false, symbols),
        "fprobe" => {
            let (name, at_return) = match rest.strip_suffix("%return") {
                Some(name) => (name, true),
                None => (rest, false),
            };
            let place = function(name)?;
            probed(&place, symbols)?;
            Ok(EventSource::Fprobe {
                function: place.symbol,
                at_return,
            })
        }
        "uprobe" => uprobe(rest.parse().map_err(|_| unknown())?, false),
        "uretprobe" => uprobe(function(rest)?, true),
        "breakpoint" => Ok(EventSource::Breakpoint {
            address: instruction(&place()?, symbols)?,
            watch: Watch::Execute,
        }),
        "mem" => data(rest, symbols, unknown),
        system if is_word(system) && is_word(rest) => Ok(EventSource::Tracepoint {
            system: system.to_owned(),
            name: rest.to_owned(),
        }),
        _ => Err(unknown()),
    }
}

fn is_word(word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !word.is_empty() && word.chars().all(is_part)
}

/// The address of an instruction; 0 without symbols.
fn instruction(
    place: &SymbolOffset,
    symbols: Option<&dyn KernelSymbols>,
) -> Result<u64, PlaceError> {
    let place = KernelPlace::Symbol(place.clone());
    symbols.map_or(Ok(0), |symbols| address_of(&place, symbols))
}

/// Whether there is an instruction to probe. Which of several functions of one name can be probed
/// is the kernel's to say.
fn probed(place: &SymbolOffset, symbols: Option<&dyn KernelSymbols>) -> Result<(), PlaceError> {
    match instruction(place, symbols) {
        Err(PlaceError::ManySymbols { .. }) if place.offset == 0 => Ok(()),
        other => other.map(|_| ()),
    }
}

/// The first instruction of a function that is neither `endbr64` nor its ftrace site.
fn body(function: &str, symbols: &dyn KernelSymbols) -> Result<SymbolOffset, PlaceError> {
    /// What `CONFIG_X86_KERNEL_IBT` puts at a function's start.
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    /// The ftrace site: a call in the image, a no-operation once the kernel runs.
    const CALL: u8 = 0xe8;
    const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
    let start = symbol_address(function, symbols)?;
    let code = symbols.code(start, ENDBR64.len() + NOP.len());
    let code = code.unwrap_or_default();
    let (mut offset, mut rest) = (0, code.as_slice());
    if let Some(behind) = rest.strip_prefix(&ENDBR64) {
        (offset, rest) = (ENDBR64.len() as u64, behind);
    }
    if rest.first() == Some(&CALL) || rest.starts_with(&NOP) {
        offset += NOP.len() as u64;
    }
    Ok(SymbolOffset {
        symbol: function.to_owned(),
        offset,
    })
}

fn kprobe(
    place: SymbolOffset,
    at_return: bool,
    optimized: bool,
    symbols: Option<&dyn KernelSymbols>,
) -> Result<EventSource, SourceError> {
    probed(&place, symbols)?;
    Ok(EventSource::Kprobe {
        function: place.symbol,
        offset: place.offset,
        at_return,
        optimized,
    })
}

fn uprobe(place: SymbolOffset, at_return: bool) -> Result<EventSource, SourceError> {
    let SymbolOffset { symbol, offset } = place;
    if !USER_SYMBOLS.contains(&symbol.as_str()) {
        return Err(SourceError::UserSymbol { symbol });
    }
    // Those of `exit`, `exec` and `process` end their task.
    const NO_RETURN: [&str; 3] = ["exit_leaf", "exec_leaf", "process_leaf"];
    let returns = matches!(symbol.as_str(), "descend" | "deep_stub")
        || symbol.ends_with("_leaf") && !NO_RETURN.contains(&symbol.as_str());
    if at_return && !returns {
        return Err(SourceError::NoReturn { symbol });
    }
    Ok(EventSource::Uprobe {
        symbol,
        offset,
        at_return,
    })
}

/// `PLACE[/BYTES][:ACCESS]`, as perf writes it.
fn data(
    text: &str,
    symbols: Option<&dyn KernelSymbols>,
    unknown: impl Fn() -> SourceError,
) -> Result<EventSource, SourceError> {
    let (text, access) = text.split_once(':').unwrap_or((text, "rw"));
    let (place, bytes) = match text.split_once('/') {
        Some((place, bytes)) => (place, Some(bytes)),
        None => (text, None),
    };
    let bytes = bytes.map(length).transpose()?;
    let watch = |bytes| match access {
        "w" => Ok(Watch::Write(bytes)),
        "rw" => Ok(Watch::ReadWrite(bytes)),
        _ => Err(unknown()),
    };
    watch(8)?;
    if let Some(path) = place.strip_prefix("task.") {
        if !path.split('.').all(is_word) {
            return Err(unknown());
        }
        let (offset, bytes) = match symbols {
            Some(symbols) => task_field(path, bytes, symbols)?,
            None => (0, bytes.unwrap_or(8)),
        };
        // A task_struct lies on a multiple of its cache line.
        aligned(place, offset, bytes)?;
        let watch = watch(bytes)?;
        return Ok(EventSource::TaskField { offset, watch });
    }
    let place_name = place;
    let place = place.parse::<SymbolOffset>().map_err(|_| unknown())?;
    let bytes = bytes.unwrap_or(8);
    let address = symbols.map_or(Ok(0), |symbols| variable(&place, symbols))?;
    aligned(place_name, address, bytes)?;
    let watch = watch(bytes)?;
    Ok(EventSource::Breakpoint { address, watch })
}

/// Complains if a breakpoint cannot cover so many bytes there.
pub(crate) fn aligned(place: &str, address: u64, bytes: u8) -> Result<(), SourceError> {
    match address % u64::from(bytes) {
        0 => Ok(()),
        _ => Err(SourceError::Unaligned {
            place: place.to_owned(),
            bytes,
        }),
    }
}

fn length(text: &str) -> Result<u8, SourceError> {
    match text {
        "1" => Ok(1),
        "2" => Ok(2),
        "4" => Ok(4),
        "8" => Ok(8),
        _ => Err(SourceError::Bytes {
            found: text.escape_debug().to_string(),
        }),
    }
}

fn variable(place: &SymbolOffset, symbols: &dyn KernelSymbols) -> Result<u64, SourceError> {
    if symbols.percpu_offset(&place.symbol).is_some() {
        return Err(SourceError::PerCpu {
            symbol: place.symbol.clone(),
        });
    }
    let start = symbol_address(&place.symbol, symbols)?;
    let size = symbols.size(&place.symbol).unwrap_or(u64::MAX);
    let inside = place.offset == 0 || place.offset < size;
    let address = start.checked_add(place.offset).filter(|_| inside);
    let beyond = || PlaceError::BeyondEnd {
        name: place.symbol.clone(),
        offset: place.offset,
        size,
    };
    Ok(address.ok_or_else(beyond)?)
}

/// Offset and number of bytes of a field of the task.
pub(crate) fn task_field(
    path: &str,
    bytes: Option<u8>,
    symbols: &dyn KernelSymbols,
) -> Result<(u64, u8), SourceError> {
    let member = symbols.member(TASK, path)?;
    let bytes = match (bytes, u8::try_from(member.size)) {
        (Some(bytes), _) => bytes,
        (None, Ok(size @ (1 | 2 | 4 | 8))) => size,
        (None, _) => {
            return Err(SourceError::FieldSize {
                path: path.to_owned(),
                size: member.size,
            });
        }
    };
    Ok((member.offset, bytes))
}
