// Images on their way from this page into DataVolumes.
import * as api from './api.js';

// A file is read in pieces of so many bytes, however large it is.
const piece = 256 << 10;

/**
 * send sends a file through a websocket of virt-api's, never more than the window that virt-api gives. told is called with how many
 * bytes virt-api has taken. The promise is kept when the importer has taken the image, and broken with virt-api's reason,
 * or without words if there is none.
 */
export function send(file, socket, told, signal) {
  return new Promise((resolve, reject) => {
    let sent = 0, limit = 0, reading = false, over = false;
    const end = (settle, value) => {
      if (over) return;
      over = true;
      socket.close();
      settle(value);
    };
    const more = async () => {
      if (reading) return;
      reading = true;
      try {
        while (!over && sent < Math.min(limit, file.size)) {
          const until = Math.min(sent + piece, limit, file.size);
          const bytes = await file.slice(sent, until).arrayBuffer();
          if (over) return;
          socket.send(bytes);
          sent = until;
        }
      } catch (error) {
        end(reject, new Error(`The file cannot be read: ${error.message}`));
      } finally {
        reading = false;
      }
    };
    socket.addEventListener('message', ({ data }) => {
      if (over) return;
      const word = JSON.parse(data);
      told(word.taken);
      if (word.refused) end(reject, new Error(word.refused));
      else if (word.done) end(resolve);
      limit = word.taken + word.window;
      more();
    });
    socket.addEventListener('close', () => end(reject, new Error('')));
    signal.addEventListener('abort', () => end(reject, signal.reason), { once: true });
    if (signal.aborted) end(reject, signal.reason);
  });
}

/** Uploads are those of this page, each by its machine and its DataVolume. */
export class Uploads {
  #all = new Map();
  #changed;

  constructor(changed) {
    this.#changed = changed;
  }

  /** of returns the uploads of a machine, by DataVolume. */
  of(machine) {
    return this.#all.get(machine.key) ?? new Map();
  }

  /** active says whether any image is on its way. */
  get active() {
    return [...this.#all.values()].some((of) => [...of.values()].some((u) => u.state === 'sending'));
  }

  /** start sends a file. */
  async start(machine, volume, file) {
    if (this.of(machine).get(volume)?.state === 'sending') return;
    const end = new AbortController();
    const upload = { state: 'sending', taken: 0, size: file.size, began: Date.now(), ended: 0, error: '', cancel: () => end.abort() };
    if (!this.#all.has(machine.key)) this.#all.set(machine.key, new Map());
    this.#all.get(machine.key).set(volume, upload);
    this.#changed();
    try {
      if (file.size === 0) throw new Error('The file is empty.');
      const socket = new WebSocket(api.uploadAddress(machine.namespace, volume, file.size), api.uploadProtocol);
      await send(file, socket, (taken) => { upload.taken = taken; this.#changed(); }, end.signal);
      upload.state = 'sent';
    } catch (error) {
      upload.state = 'failed';
      if (!end.signal.aborted) upload.error = error.message || await api.whyNoUpload(machine.namespace, volume, file.size) || 'The connection broke. Send the image again.';
    }
    upload.ended = Date.now();
    this.#changed();
  }
}
