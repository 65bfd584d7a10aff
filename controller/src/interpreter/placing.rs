//! Files of the controller on their way to a node, and back: `copy`, `template`, `fetch`.

use std::sync::Arc;

use gpufleet_protocol::NodeOp;
use gpufleet_protocol::op::{PutFile, PutTree, TreeEntry};
use gpufleet_protocol::tasks::{Copy, Fetch, FileMode, Template};
use serde_json::Value as Json;

use super::action::FetchFile;
use super::files::{FileContent, FileKind};
use super::prepare::{Deed, Stop, Surroundings, blob, fail, node, unknown};
use crate::template::{self, Dict, Scope, Shelves, Syntax, Value};

/// Text up to this many bytes goes along for diffs.
const PREVIEW_BYTES: usize = 64 * 1024;

/// The last part of a path.
fn base(path: &str) -> String {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
}

/// JSON as Python's `json.dumps` writes it, which is what Ansible puts into files.
fn python_json(value: &Json, out: &mut String) {
    let quoted = |text: &str, out: &mut String| {
        let json = Json::from(text).to_string();
        for c in json.chars() {
            if c.is_ascii() {
                out.push(c);
                continue;
            }
            let mut units = [0u16; 2];
            for unit in c.encode_utf16(&mut units) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    };
    match value {
        Json::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                python_json(item, out);
            }
            out.push(']');
        }
        Json::Object(map) => {
            out.push('{');
            for (at, (name, item)) in map.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                quoted(name, out);
                out.push_str(": ");
                python_json(item, out);
            }
            out.push('}');
        }
        Json::String(text) => quoted(text, out),
        other => out.push_str(&other.to_string()),
    }
}

/// The text of `content`.
fn content_text(content: &Json) -> String {
    match content {
        Json::String(text) => text.clone(),
        Json::Bool(true) => "True".to_owned(),
        Json::Bool(false) => "False".to_owned(),
        Json::Null => String::new(),
        other => {
            let mut out = String::new();
            python_json(other, &mut out);
            out
        }
    }
}

fn preview(secret: bool, content: &FileContent) -> Option<String> {
    let small = !secret && content.bytes.len() <= PREVIEW_BYTES;
    small.then(|| std::str::from_utf8(&content.bytes).ok().map(ToOwned::to_owned)).flatten()
}

fn put_file(mut put: PutFile, content: &FileContent) -> Deed {
    let (blob, need) = blob(content);
    put.preview = preview(put.secret, content);
    put.blob = Some(blob);
    if put.mode.as_ref().is_some_and(FileMode::is_preserve) {
        put.mode = preserved(content);
    }
    Deed::Node { op: Box::new(NodeOp::PutFile(put)), blobs: vec![need] }
}

fn tells_diff(scope: &Scope) -> bool {
    scope.get("ansible_diff_mode").is_some_and(|value| value.truthy())
}

fn preserved(content: &FileContent) -> Option<FileMode> {
    content.mode.map(|bits| FileMode(format!("{:04o}", bits & 0o7777)))
}

impl Surroundings<'_> {
    pub(super) fn copy(&self, copy: &Copy, scope: &Scope, secret: bool) -> Result<Deed, Stop> {
        let mut put = PutFile {
            dest: copy.dest.clone(),
            name: base(&copy.dest),
            blob: None,
            remote_src: None,
            preview: None,
            owner: copy.owner.clone(),
            group: copy.group.clone(),
            mode: copy.mode.clone(),
            backup: copy.backup,
            force: copy.force,
            validate: copy.validate.clone(),
            secret,
            follow: copy.follow,
            checksum: copy.checksum.clone(),
            directory_mode: copy.directory_mode.clone(),
            source: None,
            tells_diff: tells_diff(scope),
        };
        let content = match (&copy.src, &copy.content) {
            (Some(src), _) if copy.remote_src => {
                put.name = base(src);
                put.remote_src = Some(src.clone());
                return Ok(node(NodeOp::PutFile(put)));
            }
            (Some(src), _) => {
                if let Some(deed) = self.tree(copy, src, secret)? {
                    return Ok(deed);
                }
                put.name = base(src);
                let file = self.file(FileKind::File, src)?;
                put.source = Some(self.files.playbook_dir(&file.path));
                file
            }
            (None, content) => {
                FileContent::new("", content.as_ref().map(content_text).unwrap_or_default().into_bytes())
            }
        };
        Ok(put_file(put, &content))
    }

    /// A directory of the controller; nothing where `src` is none.
    fn tree(&self, copy: &Copy, src: &str, secret: bool) -> Result<Option<Deed>, Stop> {
        let listed = self.files.tree(FileKind::File, &self.search, src, copy.local_follow);
        let Some(files) = listed.map_err(fail)? else { return Ok(None) };
        let dest = copy.dest.trim_end_matches('/');
        let dest = if src.ends_with('/') { dest.to_owned() } else { format!("{dest}/{}", base(src)) };
        let (mut entries, mut needs) = (Vec::new(), Vec::new());
        for file in files {
            let mut entry =
                TreeEntry { path: file.path, blob: None, link: file.link, mode: None, preview: None };
            if let Some(content) = &file.content {
                if content.secret {
                    template::met_secret();
                }
                let (blob, need) = blob(content);
                entry.preview = preview(secret || content.secret, content);
                entry.blob = Some(blob);
                entry.mode = preserved(content);
                needs.push(need);
            }
            entries.push(entry);
        }
        let tree = PutTree {
            dest,
            told: Some((src.to_owned(), format!("{}/", copy.dest.trim_end_matches('/')))),
            entries,
            remote_src: None,
            owner: copy.owner.clone(),
            group: copy.group.clone(),
            mode: copy.mode.clone(),
            directory_mode: copy.directory_mode.clone(),
            backup: copy.backup,
            force: copy.force,
            follow: copy.follow,
            secret,
        };
        Ok(Some(Deed::Node { op: Box::new(NodeOp::PutTree(tree)), blobs: needs }))
    }

    pub(super) fn template(&self, params: &Template, scope: &Arc<Scope>, secret: bool) -> Result<Deed, Stop> {
        let source = self.file(FileKind::Template, &params.src)?;
        let text = std::str::from_utf8(&source.bytes)
            .map_err(|_| fail(format!("the template {} is not UTF-8 text", source.path)))?;
        let mut layer = Dict::default();
        for (name, value) in [
            ("ansible_managed", "Ansible managed"),
            ("template_path", source.path.as_str()),
            ("template_fullpath", source.path.as_str()),
            ("template_destpath", params.dest.as_str()),
        ] {
            if name != "ansible_managed" || scope.get(name).is_none() {
                layer.insert(name, Value::str(value));
            }
        }
        let scope = &scope.with(Arc::new(layer));
        let syntax = Syntax {
            trim_blocks: params.trim_blocks,
            lstrip_blocks: params.lstrip_blocks,
            block: (params.block_start_string.clone(), params.block_end_string.clone()),
            variable: (params.variable_start_string.clone(), params.variable_end_string.clone()),
            comment: (params.comment_start_string.clone(), params.comment_end_string.clone()),
            line_end: params.newline_sequence.as_str(),
        };
        let (syntax, text) =
            syntax.from_header(text).map_err(|why| fail(format!("{}:1: {why}", source.path)))?;
        let shelves = Shelves::of_task(&self.search, &source.path);
        let rendered = match template::render_document_as(text, scope, &syntax, &shelves) {
            Ok(Some(text)) => text,
            Ok(None) => return Err(unknown()),
            Err(error) => {
                let line = error.range().map_or_else(String::new, |range| {
                    format!(":{}", text.get(..range.start).unwrap_or_default().matches('\n').count() + 1)
                });
                return Err(fail(format!("{}{line}: {error}", source.path)));
            }
        };
        let name = params.src.rsplit('/').next().unwrap_or_default();
        let put = PutFile {
            dest: params.dest.clone(),
            name: name.to_owned(),
            blob: None,
            remote_src: None,
            preview: None,
            owner: params.owner.clone(),
            group: params.group.clone(),
            mode: match &params.mode {
                Some(mode) if mode.is_preserve() => preserved(&source),
                mode => mode.clone(),
            },
            backup: params.backup,
            force: params.force,
            validate: params.validate.clone(),
            secret,
            follow: params.follow,
            checksum: None,
            directory_mode: None,
            source: Some(self.files.playbook_dir(&source.path)),
            tells_diff: tells_diff(scope),
        };
        Ok(put_file(put, &FileContent::new("", rendered.into_bytes())))
    }

    /// Where Ansible puts what it fetches.
    pub(super) fn fetch(&self, fetch: &Fetch, scope: &Arc<Scope>) -> Result<Deed, Stop> {
        let host = scope.get("inventory_hostname").map(|value| value.to_text()).unwrap_or_default();
        let host = if host.contains('/') || host == ".." { host.replace(['/', '.'], "_") } else { host };
        let below = |path: &str| match (path.starts_with('/'), self.play.directory.is_empty()) {
            (true, _) | (_, true) => path.to_owned(),
            _ => format!("{}/{path}", self.play.directory),
        };
        if fetch.src.split('/').any(|part| part == "..") {
            return Err(fail("`src` of fetch is a path without `..`"));
        }
        let dest = match fetch.flat {
            true if fetch.dest.ends_with('/') => format!("{}{}", fetch.dest, base(&fetch.src)),
            true => fetch.dest.clone(),
            false => {
                format!("{}/{host}/{}", fetch.dest.trim_end_matches('/'), fetch.src.trim_start_matches('/'))
            }
        };
        let (src, fail_on_missing) = (fetch.src.clone(), fetch.fail_on_missing);
        let dest = below(&dest);
        self.files.note_fetched(&dest);
        Ok(Deed::Fetch(FetchFile { src, dest, fail_on_missing, max_size: fetch.max_size }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn content_is_written_as_python_does() {
        let text = |value: Json| content_text(&value);
        assert_eq!(text(json!({"a": 1, "b": ["x", null, true]})), r#"{"a": 1, "b": ["x", null, true]}"#);
        assert_eq!(text(json!(["\u{e9}\u{1f600}\n"])), r#"["\u00e9\ud83d\ude00\n"]"#);
        assert_eq!(
            (text(json!("{}")), text(json!(true)), text(json!(7))),
            ("{}".into(), "True".into(), "7".into())
        );
    }
}
