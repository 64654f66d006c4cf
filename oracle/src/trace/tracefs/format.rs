//! A format file of tracefs (`events/*/*/format`): the ID of a type of events, and where its fields are.

use std::collections::BTreeMap;

/// What a format file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Format {
    /// `common_type` of the events of this type.
    pub id: u16,
    /// Offset and size of each field, by name.
    fields: BTreeMap<String, (usize, usize)>,
}

impl Format {
    /// Reads one: lines `ID: 20` and `field:u64 cookie; offset:8; size:8; signed:0;`.
    pub fn parse(text: &str) -> Option<Self> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?;
        let mut fields = BTreeMap::new();
        for line in text.lines() {
            let Some(declared) = line.trim_start().strip_prefix("field:") else {
                continue;
            };
            let mut parts = declared.split(';').map(str::trim);
            let name = parts.next()?.rsplit(char::is_whitespace).next()?;
            let name = name.split('[').next()?.to_owned();
            let mut number = |key: &str| -> Option<usize> {
                let value = parts.next()?.strip_prefix(key)?.strip_prefix(':')?;
                value.parse().ok()
            };
            let (offset, size) = (number("offset")?, number("size")?);
            fields.insert(name, (offset, size));
        }
        Some(Self {
            id: id.trim().parse().ok()?,
            fields,
        })
    }

    /// The value of a field of at most 8 bytes; `None` where the event does not have it.
    pub fn value(&self, event: &[u8], field: &str) -> Option<u64> {
        let &(offset, size) = self.fields.get(field)?;
        let bytes = event.get(offset..offset.checked_add(size)?)?;
        let mut word = [0; 8];
        word.get_mut(..size)?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }

    /// All from the offset of a field on: text that is as long as the event.
    pub fn rest<'e>(&self, event: &'e [u8], field: &str) -> Option<&'e [u8]> {
        let &(offset, _) = self.fields.get(field)?;
        event.get(offset..)
    }

    /// So many words from the offset of a field on: an array that is as long as the event says.
    pub fn words(&self, event: &[u8], field: &str, count: usize) -> Option<Vec<u64>> {
        let &(offset, _) = self.fields.get(field)?;
        let end = offset.checked_add(count.checked_mul(8)?)?;
        let bytes = event.get(offset..end)?;
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes);
        bytes.chunks_exact(8).map(|it| word(it).ok()).collect()
    }
}
