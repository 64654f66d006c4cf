//! A function of the image: its instructions, and which can follow which.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

use super::values::{State, Values};

/// Longer functions are not looked at; the longest that any finding names has 1,500 instructions.
pub(super) const MAX_BYTES: usize = 64 << 10;

/// A decoded function, as linked: before the kernel patches itself.
#[derive(Debug)]
pub(super) struct Function {
    instructions: BTreeMap<u64, Instruction>,
    /// What the registers hold before each instruction.
    states: BTreeMap<u64, State>,
    /// See [`Values::no_return`].
    no_return: Option<u64>,
    /// Where jumps out of the function lead back to, by the address of the jump.
    back: BTreeMap<u64, Vec<u64>>,
}

/// Bytes of text at an address.
pub(super) type Text<'a> = dyn Fn(u64, usize) -> Option<Vec<u8>> + 'a;

/// What `static_cpu_has()` jumps to until the kernel has patched itself (`.altinstr_aux`): a test, a
/// jump if it holds and one if not.
const TEST_ASIDE: usize = 3;
const LONGEST_INSTRUCTION: usize = 15;

impl Function {
    /// Decodes a function; `None` if it is too long, or not code.
    pub fn decode(start: u64, code: &[u8], values: &Values, text: &Text<'_>) -> Option<Self> {
        if code.len() > MAX_BYTES {
            return None;
        }
        let mut instructions = BTreeMap::new();
        for instruction in &mut Decoder::with_ip(64, code, start, DecoderOptions::NONE) {
            // Padding follows, up to the next function.
            if instruction.is_invalid() || instruction.mnemonic() == Mnemonic::Int3 {
                break;
            }
            instructions.insert(instruction.ip(), instruction);
        }
        if instructions.is_empty() {
            return None;
        }
        let mut function = Self {
            instructions,
            states: BTreeMap::new(),
            no_return: values.no_return,
            back: BTreeMap::new(),
        };
        function.back = function.ways_back(text);
        function.states = function.interpret(start, values);
        Some(function)
    }

    fn ways_back(&self, text: &Text<'_>) -> BTreeMap<u64, Vec<u64>> {
        let jumps = self.instructions.values().filter(|it| {
            it.flow_control() == FlowControl::UnconditionalBranch
                && !self.instructions.contains_key(&it.near_branch_target())
        });
        let ways = jumps.filter_map(|jump| {
            let target = jump.near_branch_target();
            let code = text(target, TEST_ASIDE * LONGEST_INSTRUCTION)?;
            let mut decoder = Decoder::with_ip(64, &code, target, DecoderOptions::NONE);
            let aside = decoder.iter().take(TEST_ASIDE);
            let inside = |ip: &u64| self.instructions.contains_key(ip);
            let back = aside.map(|it| it.near_branch_target()).filter(inside);
            Some((jump.ip(), back.collect()))
        });
        ways.collect()
    }

    /// All instructions in order, each with what the registers hold before it.
    pub fn steps(&self) -> impl Iterator<Item = (&Instruction, &State)> {
        let state = |ip| self.states.get(ip);
        self.instructions
            .iter()
            .filter_map(move |(ip, it)| Some((it, state(ip)?)))
    }

    /// Where the instruction at `ip` can lead within the function. A call returns, but for one; the target of an
    /// indirect jump is not known, and that of a static branch neither.
    fn next(&self, ip: u64) -> impl Iterator<Item = u64> {
        let instruction = self.instructions.get(&ip);
        let falls = instruction.filter(|it| {
            !matches!(
                it.flow_control(),
                FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
                    | FlowControl::Return
            ) && !self.ends(it)
        });
        let jumps = instruction.filter(|it| {
            matches!(
                it.flow_control(),
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
            )
        });
        let falls = falls.map(Instruction::next_ip);
        let jumps = jumps.map(Instruction::near_branch_target);
        let inside = |ip: &u64| self.instructions.contains_key(ip);
        let back = self.back.get(&ip).into_iter().flatten().copied();
        falls.into_iter().chain(jumps).filter(inside).chain(back)
    }

    /// Whether it calls what does not return.
    fn ends(&self, instruction: &Instruction) -> bool {
        let target = Some(instruction.near_branch_target());
        instruction.mnemonic() == Mnemonic::Call && self.no_return == target && target != Some(0)
    }

    /// The instructions that can follow `from` before any of `walls`; those of `walls` that are
    /// reached are included.
    pub fn reach(&self, from: u64, walls: &BTreeSet<u64>) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        let mut open: Vec<u64> = self.next(from).collect();
        while let Some(ip) = open.pop() {
            if found.insert(ip) && !walls.contains(&ip) {
                open.extend(self.next(ip));
            }
        }
        found
    }

    /// Runs the function on what is known of the registers, until nothing changes.
    fn interpret(&self, start: u64, values: &Values) -> BTreeMap<u64, State> {
        let mut states = BTreeMap::from([(start, State::at_entry())]);
        self.spread(&mut states, VecDeque::from([start]), values, true);
        // Code that only a static branch leads to: nothing is known there at first, but what a
        // register holds that the function loads with nothing else. What the rest is known to hold
        // stays: the branch is one way of several.
        let aside = values.steady(self.instructions.values());
        let mut led_to: BTreeSet<u64> = BTreeSet::new();
        for &ip in self.instructions.keys() {
            led_to.extend(self.next(ip));
        }
        for &ip in self.instructions.keys() {
            if !states.contains_key(&ip) && !led_to.contains(&ip) {
                states.insert(ip, aside.clone());
                self.spread(&mut states, VecDeque::from([ip]), values, false);
            }
        }
        states
    }

    /// Runs on from instructions. What is known of others is made less where it differs, if `joins`.
    fn spread(
        &self,
        states: &mut BTreeMap<u64, State>,
        mut open: VecDeque<u64>,
        values: &Values,
        joins: bool,
    ) {
        while let Some(ip) = open.pop_front() {
            let (Some(instruction), Some(state)) = (self.instructions.get(&ip), states.get(&ip))
            else {
                continue;
            };
            let after = values.after(instruction, state);
            for next in self.next(ip) {
                let changed = match states.get_mut(&next) {
                    Some(known) => joins && known.join(&after),
                    None => states.insert(next, after.clone()).is_none(),
                };
                if changed {
                    open.push_back(next);
                }
            }
        }
    }
}
