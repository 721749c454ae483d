//! What a tool answered, as text that the policy reads.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// The text of an answer, cut to a number of bytes, and whether the tool did what it was asked.
pub(super) fn text(result: &CallToolResult, max_bytes: usize) -> (String, bool) {
    let mut parts: Vec<String> = result.content.iter().map(part).collect();
    if let (true, Some(value)) = (parts.is_empty(), &result.structured_content) {
        parts.push(value.to_string());
    }
    (cut(parts.join("\n"), max_bytes), result.is_error != Some(true))
}

fn part(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => {
            format!("[image, {}, {} characters of base64]", image.mime_type, image.data.len())
        }
        ContentBlock::Audio(audio) => {
            format!("[sound, {}, {} characters of base64]", audio.mime_type, audio.data.len())
        }
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { uri, blob, .. } => {
                format!("[resource {uri}, {} characters of base64]", blob.len())
            }
            _ => "[resource of a kind that is not known here]".to_owned(),
        },
        ContentBlock::ResourceLink(link) => format!("[resource {}]", link.uri),
        _ => "[content of a kind that is not known here]".to_owned(),
    }
}

/// A text cut to a number of bytes, at a character, with a note of what is missing.
pub(super) fn cut(mut text: String, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text;
    }
    let whole = text.len();
    text.truncate(text.floor_char_boundary(max_bytes));
    let shown = text.len();
    text.push_str(&format!("\n[cut: {shown} of {whole} bytes shown]"));
    text
}
