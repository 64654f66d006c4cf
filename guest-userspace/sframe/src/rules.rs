//! How a caller is found, and the data words of a row that say so.

/// The register that the CFA is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The frame pointer, `%rbp`.
    FramePointer,
    /// The stack pointer, `%rsp`.
    StackPointer,
}

/// A rule of a flexible function: a register or the CFA, plus an offset; the value is what is stored
/// there, or the sum itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Number of the register in DWARF (System V ABI for x86-64, figure 3.36); `None` for the CFA.
    pub register: Option<u32>,
    /// In bytes.
    pub offset: i32,
    /// Whether the value is what is stored there.
    pub stored: bool,
}

/// The rules of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// Nothing called this.
    Outermost,
    /// CFA = register + offset; the return address is below the CFA.
    Plain {
        /// The register.
        base: Base,
        /// From the register to the CFA, in bytes.
        cfa: i32,
        /// From the CFA to where the caller's frame pointer is stored, if it is.
        frame_pointer: Option<i32>,
    },
    /// The rules of a function of type `SFRAME_FDE_TYPE_FLEX`, version 3.
    Flexible {
        /// Must be of a register.
        cfa: Rule,
        /// Where it is not below the CFA.
        return_address: Option<Rule>,
        /// If it is stored.
        frame_pointer: Option<Rule>,
    },
}

impl Rule {
    /// Control word and offset (specification, 3.2).
    fn words(self) -> [i64; 2] {
        let of_register = i64::from(self.register.is_some());
        let number = i64::from(self.register.unwrap_or(0));
        let control = number << 3 | i64::from(self.stored) << 1 | of_register;
        [control, self.offset.into()]
    }
}

impl Rules {
    /// Whether the function of this row must be flexible.
    pub(crate) fn is_flexible(self) -> Option<bool> {
        match self {
            Self::Outermost => None,
            Self::Plain { .. } => Some(false),
            Self::Flexible { .. } => Some(true),
        }
    }

    /// Bit 0 of a row's info byte.
    pub(crate) fn base_bit(self) -> u8 {
        match self {
            Self::Plain {
                base: Base::StackPointer,
                ..
            } => 1,
            _ => 0,
        }
    }

    /// The data words behind a row, control words unsigned and offsets signed.
    pub(crate) fn words(self) -> Vec<i64> {
        match self {
            Self::Outermost => Vec::new(),
            Self::Plain {
                cfa, frame_pointer, ..
            } => [Some(cfa), frame_pointer]
                .into_iter()
                .flatten()
                .map(i64::from)
                .collect(),
            Self::Flexible {
                cfa,
                return_address,
                frame_pointer,
            } => {
                let mut words = cfa.words().to_vec();
                match return_address {
                    Some(rule) => words.extend(rule.words()),
                    // A padding word, where another rule follows.
                    None if frame_pointer.is_some() => words.push(0),
                    None => {}
                }
                words.extend(frame_pointer.into_iter().flat_map(Rule::words));
                words
            }
        }
    }
}
