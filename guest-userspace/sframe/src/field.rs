//! Where the fields of a section are.

use std::ops::Range;

/// What a field is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldKind {
    /// `sfp_magic`.
    Magic,
    /// `sfp_version`.
    Version,
    /// `sfp_flags`.
    Flags,
    /// `sfh_abi_arch`.
    Abi,
    /// `sfh_cfa_fixed_fp_offset`.
    FixedFpOffset,
    /// `sfh_cfa_fixed_ra_offset`.
    FixedRaOffset,
    /// `sfh_auxhdr_len`.
    AuxiliaryLength,
    /// `sfh_num_fdes`.
    Functions,
    /// `sfh_num_fres`.
    Rows,
    /// `sfh_fre_len`.
    RowsLength,
    /// `sfh_fdeoff`.
    FunctionsOffset,
    /// `sfh_freoff`.
    RowsOffset,
    /// `sfde_func_start_address`, `sfdi_func_start_offset`.
    FunctionStart,
    /// `sfde_func_size`, `sfdi_func_size`.
    FunctionSize,
    /// `sfde_func_start_fre_off`, `sfdi_func_start_fre_off`.
    FunctionRowsOffset,
    /// `sfde_func_num_fres`, `sfda_func_num_fres`.
    FunctionRows,
    /// `sfde_func_info`, `sfda_func_info`.
    FunctionInfo,
    /// `sfda_func_info2`.
    FunctionInfo2,
    /// `sfde_func_rep_size`, `sfda_func_rep_size`.
    RepeatSize,
    /// `sfde_func_padding2`.
    Padding,
    /// `sfre_start_address`.
    RowStart,
    /// `fre_info`.
    RowInfo,
    /// A data word of a row.
    Word,
}

/// A field of an encoded section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// What it is.
    pub kind: FieldKind,
    /// Its bytes in the section, little endian.
    pub bytes: Range<usize>,
}

/// A section's bytes, and what they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    /// For the address that they were encoded for.
    pub bytes: Vec<u8>,
    /// Every byte is of one of these. In order.
    pub fields: Vec<Field>,
}

impl Encoded {
    /// The low bytes of a value, as a field.
    pub(crate) fn put(&mut self, kind: FieldKind, value: i64, size: usize) {
        let start = self.bytes.len();
        self.bytes.extend(value.to_le_bytes().iter().take(size));
        let bytes = start..self.bytes.len();
        self.fields.push(Field { kind, bytes });
    }

    /// Puts what was encoded by itself behind.
    pub(crate) fn append(&mut self, other: Self) {
        let at = self.bytes.len();
        let moved = other.fields.into_iter().map(|field| Field {
            kind: field.kind,
            bytes: field.bytes.start + at..field.bytes.end + at,
        });
        self.fields.extend(moved);
        self.bytes.extend(other.bytes);
    }

    /// Overwrites a field by the low bytes of a value. Nothing happens where the field is of
    /// another section.
    pub fn set(&mut self, field: &Field, value: u64) {
        let Some(bytes) = self.bytes.get_mut(field.bytes.clone()) else {
            return;
        };
        for (byte, new) in bytes.iter_mut().zip(value.to_le_bytes()) {
            *byte = new;
        }
    }

    /// The fields of a kind.
    pub fn all(&self, kind: FieldKind) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(move |field| field.kind == kind)
    }
}
