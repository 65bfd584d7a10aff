//! The readings as a document for programs, and back.

use gpufleet_protocol::status::{GpuNow, GpuStatus};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    row::{Heard, NodeReading, rows},
    totals::FreeGpus,
};

#[derive(Deserialize)]
struct Document {
    nodes: Vec<DocumentNode>,
}

#[derive(Deserialize)]
struct DocumentNode {
    node: String,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    signals: gpufleet_protocol::signal::Readings,
    #[serde(default)]
    mps: bool,
    #[serde(default)]
    unseen: Option<String>,
    #[serde(default)]
    gpus: Vec<GpuNow>,
    #[serde(default)]
    error: Option<String>,
}

/// Reads a document that [`document`] made.
///
/// # Errors
/// Why it is none.
pub fn from_document(bytes: &[u8]) -> Result<Vec<NodeReading>, serde_json::Error> {
    let document: Document = serde_json::from_slice(bytes)?;
    let reading = |node: DocumentNode| NodeReading {
        node: node.node.into(),
        groups: node.groups.into(),
        heard: match node.error {
            Some(why) => Heard::Failed(why),
            None => Heard::Status(Box::new(GpuStatus {
                node: node.signals,
                mps: node.mps,
                gpus: node.gpus,
                unseen: node.unseen,
            })),
        },
    };
    Ok(document.nodes.into_iter().map(reading).collect())
}

/// Returns all nodes with their GPUs as they were read, each with its state, and what is free.
///
/// A signal is its value, null if the node lacks it, or `{"unknown": why}`.
pub fn document(readings: &[NodeReading]) -> Value {
    let mut free = FreeGpus::default();
    let nodes: Vec<Value> = readings
        .iter()
        .map(|reading| {
            let rows = rows(reading);
            rows.iter().for_each(|row| free.add(row));
            let mut node = Map::new();
            node.insert("node".to_owned(), json!(&*reading.node));
            node.insert("groups".to_owned(), json!(&*reading.groups));
            match &reading.heard {
                Heard::Status(status) => {
                    node.insert("signals".to_owned(), json!(status.node));
                    node.insert("mps".to_owned(), json!(status.mps));
                    node.insert("unseen".to_owned(), json!(status.unseen));
                    let gpus = status.gpus.iter().zip(&rows).map(|(now, row)| {
                        let mut gpu = json!(now);
                        if let Value::Object(gpu) = &mut gpu {
                            gpu.insert("state".to_owned(), json!(row.state.word()));
                            gpu.insert("why".to_owned(), json!((!row.why.is_empty()).then_some(&row.why)));
                        }
                        gpu
                    });
                    node.insert("gpus".to_owned(), gpus.collect());
                }
                Heard::Failed(why) => {
                    node.insert("error".to_owned(), json!(why));
                }
                Heard::Nothing => {
                    node.insert("error".to_owned(), json!("not heard of"));
                }
            }
            Value::Object(node)
        })
        .collect();
    json!({"nodes": nodes, "free": {"whole": free.whole, "mig": free.mig, "mps": free.mps}})
}
