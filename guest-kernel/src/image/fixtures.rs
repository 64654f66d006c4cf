//! Small hand-made kernels for the tests.

use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::io::Write;

use crate::image::symbols::{Segment, Symbol};

/// How a kernel lays out its kallsyms tables.
#[derive(Debug, Clone, Copy)]
pub enum Layout {
    /// Aligned to 8; a base; per-CPU symbols absolute (6.4 to 6.14 on x86-64).
    AbsolutePerCpu,
    /// Aligned to 8; a base.
    Based,
    /// Aligned to 4; each offset from its own place (7.2).
    Relative,
}

pub const LAYOUTS: [Layout; 3] = [Layout::AbsolutePerCpu, Layout::Based, Layout::Relative];

/// Where the made kernels are linked.
pub const BASE: u64 = 0xffff_ffff_8100_0000;

pub fn symbol(address: u64, kind: char, name: &str) -> Symbol {
    Symbol {
        address,
        kind: u8::try_from(kind).unwrap(),
        name: name.to_owned(),
    }
}

/// `_text` and `count` functions behind it, 32 bytes apart.
pub fn functions(count: u64) -> Vec<Symbol> {
    let mut symbols = vec![symbol(BASE, 'T', "_text")];
    symbols
        .extend((1..=count).map(|number| symbol(BASE + number * 32, 't', &format!("f_{number}"))));
    symbols
}

/// A segment's content with a kallsyms table amid other data. The only compression used: token
/// 1 stands for `f_`, and names of more than 127 codes take two bytes of length.
pub fn kallsyms(layout: Layout, symbols: &[Symbol]) -> Vec<u8> {
    let alignment = match layout {
        Layout::Relative => 4,
        _ => 8,
    };
    let mut out = b"other read-only data, not a table".to_vec();
    let align = |out: &mut Vec<u8>| out.resize(out.len().next_multiple_of(alignment), 0);
    align(&mut out);
    out.extend(u32::try_from(symbols.len()).unwrap().to_le_bytes());
    align(&mut out);
    let names = out.len();
    let mut markers = Vec::new();
    for (number, symbol) in symbols.iter().enumerate() {
        if number % 256 == 0 {
            markers.push(out.len() - names);
        }
        let mut codes = vec![symbol.kind];
        match symbol.name.strip_prefix("f_") {
            Some(rest) => codes.extend([1].iter().chain(rest.as_bytes())),
            None => codes.extend(symbol.name.as_bytes()),
        }
        let low = u8::try_from(codes.len() & 0x7f).unwrap();
        if codes.len() > 0x7f {
            out.extend([low | 0x80, u8::try_from(codes.len() >> 7).unwrap()]);
        } else {
            out.push(low);
        }
        out.extend(codes);
    }
    align(&mut out);
    for marker in markers {
        out.extend(u32::try_from(marker).unwrap().to_le_bytes());
    }
    align(&mut out);
    let mut index = Vec::new();
    let tokens = out.len();
    for code in 0..=255_u8 {
        index.push(u16::try_from(out.len() - tokens).unwrap());
        match code {
            0 => {}
            1 => out.extend(b"f_"),
            code => out.push(code),
        }
        out.push(0);
    }
    align(&mut out);
    out.extend(index.iter().flat_map(|offset| offset.to_le_bytes()));
    align(&mut out);
    for symbol in symbols {
        let offset = match layout {
            Layout::AbsolutePerCpu if symbol.address < BASE => {
                i64::try_from(symbol.address).unwrap()
            }
            Layout::AbsolutePerCpu => -1 - i64::try_from(symbol.address - BASE).unwrap(),
            Layout::Based => i64::try_from(symbol.address - BASE).unwrap(),
            Layout::Relative => {
                let place = BASE + u64::try_from(out.len()).unwrap();
                symbol.address.wrapping_sub(place).cast_signed()
            }
        };
        out.extend(i32::try_from(offset).unwrap().to_le_bytes());
    }
    if !matches!(layout, Layout::Relative) {
        align(&mut out);
        out.extend(BASE.to_le_bytes());
    }
    // The numbers of the symbols by name; their values are not looked at.
    out.extend(symbols.iter().flat_map(|_| [0, 0, 1]));
    out.extend(b"Linux version %s (x)\0Linux version 7.2.0-test (x)\0");
    out
}

pub fn segment(data: &[u8]) -> Segment<'_> {
    Segment {
        address: BASE,
        data,
        size: u64::try_from(data.len()).unwrap() + 0x1000,
    }
}

/// An ELF executable with one loaded segment.
pub fn elf(content: &[u8]) -> Vec<u8> {
    let mut out = b"\x7fELF\x02\x01\x01".to_vec();
    out.resize(16, 0);
    out.extend(2_u16.to_le_bytes()); // ET_EXEC
    out.extend(62_u16.to_le_bytes()); // EM_X86_64
    out.extend(1_u32.to_le_bytes());
    out.extend(BASE.to_le_bytes()); // entry
    out.extend(64_u64.to_le_bytes()); // program headers
    out.extend(0_u64.to_le_bytes()); // no section headers
    out.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 0, 0] {
        out.extend(half.to_le_bytes());
    }
    let size = u64::try_from(content.len()).unwrap();
    out.extend(1_u32.to_le_bytes()); // PT_LOAD
    out.extend(5_u32.to_le_bytes());
    for long in [0x1000, BASE, 0x100_0000, size, size + 0x1000, 0x1000] {
        out.extend(long.to_le_bytes());
    }
    out.resize(0x1000, 0);
    out.extend(content);
    out
}

/// Compresses as the kernel's build does.
#[derive(Debug, Clone, Copy)]
pub enum Packing {
    Zstd,
    /// With the branch filter for x86, and CRC32.
    Xz,
    Gzip,
}

pub fn pack(packing: Packing, content: &[u8]) -> Vec<u8> {
    let size = u32::try_from(content.len()).unwrap().to_le_bytes();
    match packing {
        Packing::Zstd => {
            let mut out = compress_to_vec(content, CompressionLevel::Fastest);
            out.extend(size);
            out
        }
        Packing::Xz => {
            use liblzma::stream::{Check, Filters, LzmaOptions, Stream};
            let mut filters = Filters::new();
            filters.x86();
            filters.lzma2(&LzmaOptions::new_preset(6).unwrap());
            let stream = Stream::new_stream_encoder(&filters, Check::Crc32).unwrap();
            let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
            encoder.write_all(content).unwrap();
            let mut out = encoder.finish().unwrap();
            out.extend(size);
            out
        }
        Packing::Gzip => {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        }
    }
}

/// A bzImage around a compressed payload.
pub fn bzimage(payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 0x400];
    out[0x1f1] = 1; // one sector of set-up code
    out[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    out[0x202..0x206].copy_from_slice(b"HdrS");
    out[0x206..0x208].copy_from_slice(&[0x0f, 0x02]); // protocol 2.15
    out[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
    let length = u32::try_from(payload.len()).unwrap();
    out[0x24c..0x250].copy_from_slice(&length.to_le_bytes());
    out.extend([0x90; 16]);
    out.extend(payload);
    out.extend(b"more code");
    out
}
