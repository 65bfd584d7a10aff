//! Builds the tree from parser events.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use serde_saphyr::granit_parser::{self as granit, Event, Marker, Parser, ScalarStyle, StructureStyle, Tag};

use super::error::{is_outdented, scan_error, tab_error, unclear_key};
use super::node::{Entries, Node, Str, Value};
use super::{Limits, clamp, scalar};
use crate::diagnostic::{Diagnostic, Diagnostics, SourceFile, Span};

const UNSAFE: &str = "!unsafe";

/// Types that PyYAML reads in addition to a reader's own tags. `!!binary` is refused as an unknown tag.
const CORE_TYPES: [&str; 11] =
    ["str", "null", "bool", "int", "float", "map", "seq", "set", "omap", "pairs", "timestamp"];

/// The largest mapping that is searched for a key without an index.
const SMALL_MAP: usize = 12;

/// Blanks put before a line of a quoted text that is indented less than the parser requires.
const PADDING: usize = 256;
/// The largest number of such lines; with more, the text is refused.
const MOST_PADDED: usize = 256;

/// The text as passed to the parser. PyYAML lets quoted text go on at any column and drops the blanks before it; the
/// parser does not, so such lines are padded.
struct Padded {
    text: String,
    /// Lines with [`PADDING`] before them, from 1.
    lines: BTreeSet<usize>,
}

impl Padded {
    fn pad(&mut self, line: usize) -> bool {
        let breaks = self.text.match_indices('\n').map(|(at, _)| at + 1);
        let start = std::iter::once(0).chain(breaks).nth(line.saturating_sub(1));
        match start.filter(|_| self.lines.len() < MOST_PADDED && self.lines.insert(line)) {
            Some(start) => {
                self.text.insert_str(start, &" ".repeat(PADDING));
                true
            }
            None => false,
        }
    }

    /// Returns the column in the text before padding.
    fn column(&self, line: usize, column: usize) -> usize {
        if self.lines.contains(&line) { column.saturating_sub(PADDING) } else { column }
    }
}

pub(super) fn build(source: &Arc<SourceFile>, limits: &Limits, json: bool) -> Result<Node, Diagnostics> {
    let mut padded = Padded { text: source.text().to_owned(), lines: BTreeSet::new() };
    let mut first = None;
    loop {
        let (built, outdented) = built(source, &padded, limits, json);
        match (built, outdented) {
            (Err(errors), Some(line)) => {
                let before = first.get_or_insert(errors);
                if !padded.pad(line) {
                    return Err(std::mem::take(before));
                }
            }
            // Where a quote is never closed, the first error names the mistake.
            (Err(errors), None) => return Err(first.unwrap_or(errors)),
            (Ok(node), _) => return Ok(node),
        }
    }
}

/// Returns the tree, and the line of a quoted text that is indented less than the parser requires.
fn built(
    source: &Arc<SourceFile>,
    padded: &Padded,
    limits: &Limits,
    json: bool,
) -> (Result<Node, Diagnostics>, Option<usize>) {
    let mut outdented = None;
    let mut options = granit::Options::default();
    options.set_emit_comments(false);
    options.block_nesting_limit = limits.depth;
    options.flow_nesting_limit = limits.depth;
    let mut builder = Builder {
        source,
        padded,
        limits,
        json,
        frames: Vec::new(),
        root: None,
        anchors: HashMap::new(),
        alias_nodes: 0,
        documents: 0,
        errors: Diagnostics::new(),
    };
    for event in Parser::new_from_str_with_options(&padded.text, options) {
        let step = match event {
            Ok((event, span)) => builder.event(event, &span),
            Err(error) => {
                outdented = is_outdented(&error).then(|| error.marker().line().max(1));
                Err(scan_error(source, limits, &error).into())
            }
        };
        // After a parser error the rest cannot be understood; duplicate keys before it are still reported.
        if let Err(error) = step {
            builder.errors.append(error);
            break;
        }
    }
    let root = builder.root.take();
    let empty = || Node { value: Value::Null, span: Span::new(source, 1, 1, 0) };
    (builder.errors.into_result(root.unwrap_or_else(empty)), outdented)
}

struct Builder<'a> {
    source: &'a Arc<SourceFile>,
    padded: &'a Padded,
    limits: &'a Limits,
    /// Whether the text is valid JSON too.
    json: bool,
    frames: Vec<Frame>,
    root: Option<Node>,
    anchors: HashMap<usize, Anchored>,
    alias_nodes: usize,
    documents: usize,
    errors: Diagnostics,
}

struct Anchored {
    node: Node,
    size: usize,
    height: usize,
}

struct Frame {
    content: Content,
    span: Option<Span>,
    start: Span,
    anchor: usize,
    tag: Option<Box<str>>,
    flow: bool,
}

enum Content {
    Seq(Vec<Node>),
    Map(MapContent),
}

#[derive(Default)]
struct MapContent {
    entries: Entries,
    merged: Entries,
    key: Option<Node>,
    index: HashMap<String, usize>,
}

impl MapContent {
    /// Returns the index of the entry with this key.
    fn find(&mut self, key: &Node) -> Option<usize> {
        if self.entries.len() <= SMALL_MAP {
            return self.entries.iter().position(|(other, _)| same_key(other, key));
        }
        for (position, (key, _)) in self.entries.iter().enumerate().skip(self.index.len()) {
            self.index.insert(key.key_text(), position);
        }
        match key.as_str() {
            Some(key) => self.index.get(key).copied(),
            None => self.index.get(&key.key_text()).copied(),
        }
    }
}

fn same_key(a: &Node, b: &Node) -> bool {
    match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) => a == b,
        _ => a.key_text() == b.key_text(),
    }
}

fn is_merge_key(node: &Node) -> bool {
    matches!(&node.value, Value::Str(Str { text, plain: true }) if text == "<<")
}

impl Builder<'_> {
    fn event(&mut self, event: Event<'_>, span: &granit::Span) -> Result<(), Diagnostics> {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(Diagnostic::error("a second YAML document begins here")
                        .at(&self.place(span.start, span.end))
                        .label("one file holds one document")
                        .help("remove this `---` or put the document into a file of its own")
                        .into());
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_tab(span.start)?;
                let node = self.scalar(&text, style, tag.as_deref(), span)?;
                self.keep_anchor(anchor, &node);
                self.insert(node)?;
            }
            Event::SequenceStart(style, anchor, tag) => {
                self.open(Content::Seq(Vec::new()), style, anchor, tag.as_deref(), span)?;
            }
            Event::MappingStart(style, anchor, tag) => {
                self.open(Content::Map(MapContent::default()), style, anchor, tag.as_deref(), span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close()?,
            Event::Alias(id) => self.alias(id, span)?,
            _ => {}
        }
        Ok(())
    }

    /// Refuses a key or a list of a block collection that is indented by tabs; the parser accepts some of them.
    fn refuse_tab(&self, start: Marker) -> Result<(), Diagnostics> {
        if self.frames.last().is_some_and(|frame| frame.flow) {
            return Ok(());
        }
        let before =
            start.byte_offset().and_then(|at| self.padded.text.as_bytes().get(..at)).unwrap_or_default();
        let blanks = before.iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t'));
        let (mut count, mut tab) = (0, None);
        for byte in blanks {
            count += 1;
            if *byte == b'\t' {
                tab = Some(count);
            }
        }
        match tab {
            Some(back) if count == start.col() => {
                let place = Span::new(self.source, clamp(start.line()), clamp(count - back + 1), 1);
                Err(tab_error(&place).into())
            }
            _ => Ok(()),
        }
    }

    fn place(&self, start: Marker, end: Marker) -> Span {
        let length =
            if end.line() == start.line() { end.col().saturating_sub(start.col()) } else { usize::MAX };
        let column = self.padded.column(start.line(), start.col());
        Span::new(self.source, clamp(start.line().max(1)), clamp(column + 1), clamp(length))
    }

    fn scalar(
        &self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        span: &granit::Span,
    ) -> Result<Node, Diagnostics> {
        let mut place = self.place(span.start, span.end);
        let plain = matches!(style, ScalarStyle::Plain);
        if plain
            && span.is_empty()
            && let Some(Frame { content: Content::Map(MapContent { key: Some(key), .. }), .. }) =
                self.frames.last()
        {
            place = key.span.clone();
        }
        let untagged = || match plain.then(|| scalar::resolve(text)) {
            Some(Value::Str(_)) if self.json => {
                text.parse().map_or_else(|_| scalar::resolve(text), Value::Float)
            }
            Some(value) => value,
            None => Value::Str(Str { text: text.to_owned(), plain: false }),
        };
        let Some(tag) = tag else { return Ok(Node { value: untagged(), span: place }) };
        if let Some(core) = core_type(tag) {
            let value = scalar::resolve_core(core, text).ok_or_else(|| not_of_type(core, &place))?;
            return Ok(Node { value, span: place });
        }
        let tag = self.custom_tag(tag, span)?;
        // Under `!` and `!unsafe`, PyYAML resolves a quoted scalar as if it had no quotes.
        let value = match tag.as_deref() {
            None | Some(UNSAFE) => scalar::resolve(text),
            Some(_) => Value::Str(Str { text: text.to_owned(), plain: false }),
        };
        let node = Node { value, span: place };
        Ok(match tag {
            None => node,
            Some(tag) if &*tag == UNSAFE => unsafe_texts(node),
            Some(tag) => tagged(tag, node),
        })
    }

    /// Returns the name of an allowed tag; `None` for the non-specific tag `!`.
    fn custom_tag(&self, tag: &Tag, span: &granit::Span) -> Result<Option<Box<str>>, Diagnostics> {
        let name = tag.original();
        if name == "!" {
            return Ok(None);
        }
        if self.limits.tags.contains(&name.as_str()) {
            return Ok(Some(name.into()));
        }
        let start = span.tag_start().unwrap_or(span.start);
        let place =
            Span::new(self.source, clamp(start.line()), clamp(start.col() + 1), clamp(name.chars().count()));
        let error = Diagnostic::error(format!("unknown tag `{name}`"))
            .at(&place)
            .note(format!("known tags: {}", self.limits.tags.join(", ")));
        let near = crate::diagnostic::did_you_mean(&name, self.limits.tags.iter().copied());
        let line = self.source.line(place.line).unwrap_or_default();
        let condition = ["when:", "_when:", "until:"].iter().any(|key| line.contains(key));
        Err(match near {
            Some(near) => error.help(near),
            None if condition => {
                error.help(format!("in a condition write `not {}`", name.trim_start_matches('!')))
            }
            None => error.help("put a text that begins with `!` in quotes"),
        }
        .into())
    }

    fn open(
        &mut self,
        content: Content,
        style: StructureStyle,
        anchor: usize,
        tag: Option<&Tag>,
        span: &granit::Span,
    ) -> Result<(), Diagnostics> {
        let start = self.place(span.start, span.end);
        if self.frames.len() >= self.limits.depth {
            return Err(self.too_deep(&start).into());
        }
        self.refuse_tab(span.start)?;
        let tag = match tag {
            None => None,
            Some(tag) => match core_type(tag) {
                Some("map" | "seq") => None,
                Some(core) => Some(core.into()),
                None => self.custom_tag(tag, span)?,
            },
        };
        let flow = matches!(style, StructureStyle::Flow);
        // A block collection has no bracket to point at; its first key or item is where a person looks.
        let span = flow.then(|| Span { length: 1, ..start.clone() });
        self.frames.push(Frame { content, span, start, anchor, tag, flow });
        Ok(())
    }

    fn too_deep(&self, place: &Span) -> Diagnostic {
        Diagnostic::error(format!("nested deeper than {} levels", self.limits.depth)).at(place)
    }

    fn close(&mut self) -> Result<(), Diagnostics> {
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        let value = match frame.content {
            Content::Seq(items) => Value::Seq(items),
            Content::Map(map) => Value::Map(finish_map(map)),
        };
        let span = frame.span.unwrap_or(frame.start);
        let node = Node { value, span };
        let node = match frame.tag {
            None => node,
            Some(tag) if &*tag == UNSAFE => unsafe_texts(node),
            Some(tag) if CORE_TYPES.contains(&&*tag) => listed(&tag, node)?,
            Some(tag) => tagged(tag, node),
        };
        self.keep_anchor(frame.anchor, &node);
        self.insert(node)
    }

    fn keep_anchor(&mut self, anchor: usize, node: &Node) {
        if anchor != 0 {
            let (size, height) = measure(node);
            // Anchored aliases count as expansions too: a copy for every anchor could itself grow without bound.
            self.anchors.insert(anchor, Anchored { node: node.clone(), size, height });
        }
    }

    fn alias(&mut self, id: usize, span: &granit::Span) -> Result<(), Diagnostics> {
        let place = self.place(span.start, span.end);
        let Some(anchored) = self.anchors.get(&id) else {
            return Err(Diagnostic::error("an alias stands inside the very value it names")
                .at(&place)
                .into());
        };
        self.alias_nodes += anchored.size;
        if self.alias_nodes > self.limits.alias_nodes {
            return Err(Diagnostic::error(format!(
                "aliases expand to more than {} values",
                self.limits.alias_nodes
            ))
            .at(&place)
            .help(
                "a document that copies itself this often is refused; write the values out or nest them less",
            )
            .into());
        }
        if self.frames.len() + anchored.height > self.limits.depth {
            return Err(self.too_deep(&place).into());
        }
        let node = anchored.node.clone();
        self.insert(node)
    }

    fn insert(&mut self, node: Node) -> Result<(), Diagnostics> {
        let Some(frame) = self.frames.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        if frame.span.is_none() {
            frame.span = Some(node.span.clone());
        }
        match &mut frame.content {
            Content::Seq(items) => items.push(node),
            Content::Map(map) => match map.key.take() {
                None if is_unsafe_text(&node) => map.key = Some(untagged(node)),
                None if matches!(node.value, Value::Seq(_) | Value::Map(_) | Value::Tagged { .. }) => {
                    return Err(unclear_key(&node).into());
                }
                None => map.key = Some(node),
                Some(key) if is_merge_key(&key) => merge(&mut map.merged, node)?,
                Some(key) => match map.find(&key) {
                    Some(first) => {
                        let first = map.entries.get(first).map_or(0, |(key, _)| key.span.line);
                        self.errors.push(
                            Diagnostic::error(format!("the key `{}` is written twice", key.key_text()))
                                .at(&key.span)
                                .label(format!("first on line {first}"))
                                .help("remove one of the two: only one of them could count"),
                        );
                    }
                    None => map.entries.push((key, node)),
                },
            },
        }
        Ok(())
    }
}

/// Returns the YAML type that a tag names, if PyYAML reads it from text.
fn core_type(tag: &Tag) -> Option<&'static str> {
    let name = format!("{}{}", tag.handle(), tag.suffix());
    let name = name.strip_prefix("tag:yaml.org,2002:")?;
    CORE_TYPES.into_iter().find(|known| *known == name)
}

fn not_of_type(core: &str, place: &Span) -> Diagnostic {
    Diagnostic::error(format!("this is no YAML `!!{core}`"))
        .at(place)
        .help("quote strings, and leave the tag out: types are found by themselves")
}

fn tagged(tag: Box<str>, node: Node) -> Node {
    let span = node.span.clone();
    Node { value: Value::Tagged { tag, node: Box::new(node) }, span }
}

fn untagged(node: Node) -> Node {
    match node.value {
        Value::Tagged { node, .. } => *node,
        value => Node { value, span: node.span },
    }
}

fn is_unsafe_text(node: &Node) -> bool {
    matches!(&node.value, Value::Tagged { tag, node } if &**tag == UNSAFE && node.as_str().is_some())
}

/// Marks every string value as unsafe; other scalars cannot hold a template.
fn unsafe_texts(node: Node) -> Node {
    let span = node.span;
    let value = match node.value {
        Value::Str(Str { text, .. }) => {
            let value = Value::Str(Str { text, plain: false });
            return tagged(UNSAFE.into(), Node { value, span });
        }
        Value::Seq(items) => Value::Seq(items.into_iter().map(unsafe_texts).collect()),
        Value::Map(entries) => {
            Value::Map(entries.into_iter().map(|(key, value)| (key, unsafe_texts(value))).collect())
        }
        other => other,
    };
    Node { value, span }
}

/// Converts a `!!set`, `!!omap` or `!!pairs` to the list that all users of the value see.
fn listed(tag: &str, node: Node) -> Result<Node, Diagnostic> {
    let span = node.span;
    let items = match (tag, node.value) {
        ("set", Value::Map(entries)) => entries.into_iter().map(|(key, _)| key).collect(),
        ("omap" | "pairs", Value::Seq(items)) => {
            let pair = |item: Node| match item.value {
                Value::Map(mut entries) if entries.len() == 1 => entries
                    .pop()
                    .map(|(key, value)| Node { span: key.span.clone(), value: Value::Seq(vec![key, value]) }),
                _ => None,
            };
            items.into_iter().map(pair).collect::<Option<_>>().ok_or_else(|| not_of_type(tag, &span))?
        }
        _ => return Err(not_of_type(tag, &span)),
    };
    Ok(Node { value: Value::Seq(items), span })
}

/// Adds the entries of a `<<` value, those with higher precedence last.
fn merge(merged: &mut Entries, value: Node) -> Result<(), Diagnostics> {
    match value.value {
        Value::Map(entries) => merged.extend(entries),
        Value::Seq(items) => {
            for item in items.into_iter().rev() {
                match item.value {
                    Value::Map(entries) => merged.extend(entries),
                    _ => {
                        return Err(item.wrong_type("every item of the list under `<<`", "a mapping").into());
                    }
                }
            }
        }
        _ => return Err(value.wrong_type("`<<`", "a mapping or a list of mappings").into()),
    }
    Ok(())
}

fn finish_map(map: MapContent) -> Entries {
    if map.merged.is_empty() {
        return map.entries;
    }
    let mut result: Entries = Vec::with_capacity(map.merged.len() + map.entries.len());
    let mut places: HashMap<String, usize> = HashMap::new();
    for (key, value) in map.merged.into_iter().chain(map.entries) {
        match places.get(&key.key_text()) {
            Some(&place) => result[place] = (key, value),
            None => {
                places.insert(key.key_text(), result.len());
                result.push((key, value));
            }
        }
    }
    result
}

/// Returns the number of nodes of a tree, and its depth.
fn measure(node: &Node) -> (usize, usize) {
    let sum = |parts: &mut dyn Iterator<Item = &Node>| {
        let mut size = 1;
        let mut height = 0;
        for part in parts {
            let (part_size, part_height) = measure(part);
            size += part_size;
            height = height.max(part_height);
        }
        (size, height + 1)
    };
    match &node.value {
        Value::Seq(items) => sum(&mut items.iter()),
        Value::Map(entries) => sum(&mut entries.iter().flat_map(|(key, value)| [key, value])),
        Value::Tagged { node, .. } => measure(node),
        _ => (1, 0),
    }
}
