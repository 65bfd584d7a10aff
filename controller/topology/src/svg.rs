//! A node drawn as boxes with text: as SVG, or as shapes for a page that makes its elements itself.

use std::fmt::Write as _;

use gpufleet_language::visible::visible;
use gpufleet_protocol::topology::{Device, Topology};
use serde::Serialize;

use crate::tree::{Drawn, Group, Section, Sort, drawn, heading, memory_only, sections, summary};

/// All in pixels.
const WIDTH: usize = 960;
const GAP: usize = 12;
const LINE: usize = 18;
const BOX: usize = 3 * LINE + 8;
/// Least width of the box of a device.
const NARROWEST: usize = 190;
/// Width of a character of the fixed font, in tenths of a pixel.
const CHARACTER: usize = 73;

/// Shapes, the lower ones first. What each is says its class; colours are for who shows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Drawing {
    /// What the picture shows, in words.
    pub name: String,
    pub width: usize,
    pub height: usize,
    pub rects: Vec<Rect>,
    pub texts: Vec<Text>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rect {
    pub x: usize,
    pub y: usize,
    pub width: usize,
    pub height: usize,
    pub class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Text {
    pub x: usize,
    /// Of the baseline.
    pub y: usize,
    pub class: &'static str,
    pub text: String,
}

impl Drawing {
    /// Draws the nodes with one topology; `title` is their names, or empty.
    pub fn of(title: &str, topology: &Topology) -> Self {
        let sections = sections(topology);
        let columns = sections.len().clamp(1, 2);
        let width = (WIDTH - GAP * (columns + 1)) / columns;
        let summary = summary(topology);
        let head = if title.is_empty() { summary } else { format!("{title}  {summary}") };
        let mut drawing = Self {
            name: visible(&head).into_owned(),
            width: WIDTH,
            height: GAP + 2 * LINE,
            rects: Vec::new(),
            texts: Vec::new(),
        };
        drawing.label(GAP, GAP + LINE, WIDTH - 2 * GAP, &head, "title");
        for row in sections.chunks(columns) {
            let tallest = row.iter().map(|section| height(section, width)).max().unwrap_or_default();
            for (at, section) in row.iter().enumerate() {
                let place = Place { x: GAP + at * (width + GAP), y: drawing.height, width, height: tallest };
                drawing.section(topology, section, place);
            }
            drawing.height += tallest + GAP;
        }
        if let Some(memory) = memory_only(topology) {
            drawing.label(GAP, drawing.height + LINE, WIDTH - 2 * GAP, &memory, "detail");
            drawing.height += LINE + GAP;
        }
        drawing
    }

    /// Returns an `<svg>` element that can be a file of its own, without style and script.
    pub fn svg(&self) -> String {
        let Self { width, height, rects, texts, name } = self;
        let name = escaped(&format!("Topology of {name}"));
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{name}\" font-family=\"ui-monospace, DejaVu Sans Mono, monospace\" font-size=\"12\">\
             <title>{name}</title><rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>"
        );
        for Rect { x, y, width, height, class } in rects {
            let fill = match *class {
                "gpu" => "#d9edb8",
                "card" => "#d6e4fd",
                "drive" => "#e7e5e4",
                "nvswitch" => "#eef7de",
                _ => "none",
            };
            let _ = write!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"{fill}\" \
                 stroke=\"#8c8c8c\"/>"
            );
        }
        for Text { x, y, class, text } in texts {
            let weight = if matches!(*class, "title" | "name") { "bold" } else { "normal" };
            let _ = write!(
                out,
                "<text x=\"{x}\" y=\"{y}\" font-weight=\"{weight}\" fill=\"#1c1c1c\">{}</text>",
                escaped(text)
            );
        }
        out + "</svg>\n"
    }

    fn section(&mut self, topology: &Topology, section: &Section<'_>, place: Place) {
        let (name, detail) = heading(topology, section.node);
        self.rect(place, "node");
        self.label(place.x + GAP, place.y + LINE, place.width - 2 * GAP, &name, "name");
        self.label(place.x + GAP, place.y + 2 * LINE, place.width - 2 * GAP, &detail, "detail");
        let mut y = place.y + 2 * LINE + 12;
        for group in &section.groups {
            let height = group_height(group, place.width);
            let inner = Place { x: place.x + GAP, y, width: place.width - 2 * GAP, height };
            self.rect(inner, "switch");
            self.label(inner.x + 8, y + LINE - 3, inner.width - 16, &group.label, "detail");
            self.devices(group, inner);
            y += height + 8;
        }
    }

    fn devices(&mut self, group: &Group<'_>, place: Place) {
        let across = per_row(place.width - 2 * GAP);
        let width = (place.width - 6 * (across + 1)) / across;
        for (at, device) in group.devices.iter().enumerate() {
            let x = place.x + 6 + (at % across) * (width + 6);
            let y = place.y + LINE + 4 + (at / across) * (BOX + 6);
            self.device(device, Place { x, y, width, height: BOX });
        }
    }

    fn device(&mut self, device: &Device, place: Place) {
        let Drawn { sort, name, address, detail } = drawn(device);
        self.rect(
            place,
            match sort {
                Sort::Gpu => "gpu",
                Sort::Card => "card",
                Sort::Drive => "drive",
                Sort::Switch => "nvswitch",
            },
        );
        for (line, (text, class)) in (1..).zip([(name, "name"), (address, "detail"), (detail, "detail")]) {
            self.label(place.x + 8, place.y + line * LINE, place.width - 16, &text, class);
        }
    }

    fn rect(&mut self, place: Place, class: &'static str) {
        let Place { x, y, width, height } = place;
        self.rects.push(Rect { x, y, width, height, class });
    }

    /// Writes a text, cut to a width.
    fn label(&mut self, x: usize, y: usize, width: usize, text: &str, class: &'static str) {
        if text.is_empty() {
            return;
        }
        let text = visible(text);
        let most = (width * 10 / CHARACTER).max(2);
        let text = match text.chars().count() > most {
            true => text.chars().take(most - 1).chain(['…']).collect(),
            false => text.into_owned(),
        };
        self.texts.push(Text { x, y, class, text });
    }
}

#[derive(Clone, Copy)]
struct Place {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

fn per_row(width: usize) -> usize {
    (width / NARROWEST).max(1)
}

fn group_height(group: &Group<'_>, width: usize) -> usize {
    let rows = group.devices.len().div_ceil(per_row(width - 4 * GAP));
    LINE + 4 + rows * (BOX + 6) + 6
}

fn height(section: &Section<'_>, width: usize) -> usize {
    let groups: usize = section.groups.iter().map(|group| group_height(group, width) + 8).sum();
    2 * LINE + 12 + groups
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in visible(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}
