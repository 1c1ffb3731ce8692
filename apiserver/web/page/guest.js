// A guest's console or screen, in a dialog over the list.
import * as api from './api.js';
import * as model from './model.js';
import RFB from './novnc.js';
import { Terminal } from './xterm.js';

const at = (id) => document.getElementById(id);
// What is shown, and the subresource that it is.
const streams = { console: 'console', screen: 'vnc' };
// What a guest takes a serial terminal for that does not say how large it is.
const columns = 80, lines = 24;

/** leaves says whether a key leaves the guest: virtctl's, and one that all keyboards have. */
const leaves = (event) => event.ctrlKey && (event.altKey ? event.key === 'Home' : event.key === ']') && !event.getModifierState('AltGraph');

/** Guest is the dialog. */
export class Guest {
  #machine = null;
  #kind = '';
  #view = null; // what is on the surface
  #socket = null;
  #uid = ''; // of the VMI that was connected to last
  #timer = 0;
  #attempts = 0;

  constructor() {
    at('guest-console').addEventListener('click', () => this.#show('console'));
    at('guest-screen').addEventListener('click', () => this.#show('screen'));
    at('guest-again').addEventListener('click', () => { this.#connect(); this.#view?.focus(); });
    at('guest-keys').addEventListener('click', () => { this.#view?.ctrlAltDel(); this.#view?.focus(); });
    at('guest-close').addEventListener('click', () => at('guest').close());
    // The event may come so late that the dialog is open again.
    at('guest').addEventListener('close', () => { if (!at('guest').open) this.#closed(); });
    at('guest-surface').addEventListener('keydown', (event) => {
      if (!leaves(event)) return;
      event.preventDefault();
      event.stopPropagation();
      this.#view?.release?.();
      at('guest-close').focus();
    }, { capture: true });
    new ResizeObserver(() => this.#view?.fit?.()).observe(at('guest-surface'));
  }

  /** open shows a machine's console or screen; the browser gives focus back on close. */
  open(machine, kind) {
    this.#machine = machine;
    at('guest-name').textContent = `${machine.namespace}/${machine.name}`;
    at('guest').showModal();
    this.#showState();
    this.#show(kind);
  }

  /** update is told what there is now. */
  update(machines) {
    if (!this.#machine) return;
    const now = machines.find((m) => m.key === this.#machine.key);
    this.#machine = now ?? { ...this.#machine, vm: undefined, vmi: undefined };
    this.#showState();
    if (this.#socket) return;
    const next = model.afterClose(this.#uid, this.#machine.vmi);
    if (next === 'open') this.#connect();
    if (next === 'wait') this.#wait();
  }

  #showState() {
    const { vm, vmi } = this.#machine;
    const there = Boolean(vm || vmi);
    const word = there ? model.state(this.#machine) : 'Gone';
    if (at('guest-state').textContent !== word) at('guest-state').textContent = word;
    at('guest-state').dataset.tone = there ? model.tone(word, model.problem(this.#machine, Date.now())) : 'rest';
    const actions = there ? model.actions(this.#machine) : [];
    for (const kind of Object.keys(streams)) {
      const why = model.attachable(vmi) ? actions.find((a) => a.id === kind).why : '';
      at(`guest-${kind}`).setAttribute('aria-disabled', why !== '');
      at(`guest-${kind}`).title = why;
    }
  }

  #show(kind) {
    if (at(`guest-${kind}`).getAttribute('aria-disabled') === 'true') return;
    this.#disconnect();
    this.#view?.end();
    this.#view = null;
    this.#kind = kind;
    this.#attempts = 0;
    for (const other of Object.keys(streams)) at(`guest-${other}`).setAttribute('aria-pressed', other === kind);
    at('guest-keys').hidden = kind !== 'screen';
    this.#connect();
    this.#view?.focus();
  }

  #connect() {
    this.#disconnect();
    const { vmi } = this.#machine;
    if (!model.attachable(vmi)) {
      this.#wait();
      return;
    }
    this.#uid = vmi.metadata.uid;
    this.#say(`Connecting to the ${this.#kind}…`, {});
    const socket = new WebSocket(api.streamAddress(this.#machine, streams[this.#kind]), api.protocol);
    socket.binaryType = 'arraybuffer';
    this.#socket = socket;
    let opened = false;
    socket.addEventListener('open', () => { opened = true; this.#attempts = 0; this.#say('Connected.', {}); });
    socket.addEventListener('close', (event) => { if (this.#socket === socket) this.#lost(opened, event.code); });
    // Focus is the guest's, unless somebody has taken it elsewhere meanwhile.
    const idle = [document.body, at('guest'), at('guest-again')].includes(document.activeElement) || at('guest-surface').contains(document.activeElement);
    // What is on the screen is drawn anew; what a terminal has shown stays.
    if (this.#kind === 'screen' || !this.#view) {
      this.#view?.end();
      at('guest-surface').replaceChildren();
      this.#view = this.#kind === 'screen' ? screen(at('guest-surface')) : terminal(at('guest-surface'));
    }
    this.#view.attach(socket);
    if (idle) this.#view.focus();
  }

  /** lost is called when a connection ended that was not given up here. */
  async #lost(opened, code) {
    this.#socket = null;
    const next = model.afterClose(this.#uid, this.#machine.vmi);
    if (next !== 'ask') {
      this.update([this.#machine]);
      return;
    }
    if (opened && code === 1000) {
      this.#say(`The ${this.#kind} was closed. It has one viewer at a time: somebody else may have opened it.`, { tone: 'bad', again: true });
      return;
    }
    const [machine, kind] = [this.#machine, this.#kind];
    const why = await api.whyNot(machine, streams[kind]);
    if (this.#socket || this.#machine?.key !== machine.key || this.#kind !== kind) return;
    this.#say(why || 'The connection broke.', { tone: 'bad', again: true });
    // A connection that broke is tried again by itself; what was refused stays so.
    if (!why && this.#attempts < 5) this.#timer = setTimeout(() => this.#connect(), 1000 * 2 ** this.#attempts++);
  }

  #wait() {
    this.#say(this.#machine.vm || this.#machine.vmi ? `The guest does not run. Its ${this.#kind} opens when it does.` : 'The machine is gone.', {});
  }

  #say(text, { tone = '', again = false }) {
    const line = at('guest-link');
    if (line.textContent !== text) line.textContent = text;
    line.dataset.tone = tone;
    const button = at('guest-again');
    const had = document.activeElement === button;
    button.hidden = !again;
    if (had && !again) at('guest-close').focus();
  }

  #disconnect() {
    clearTimeout(this.#timer);
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  #closed() {
    this.#disconnect();
    this.#view?.end();
    this.#view = null;
    this.#machine = null;
    at('guest-surface').replaceChildren();
  }
}

/** terminal is a serial console's. */
function terminal(surface) {
  const place = surface.appendChild(document.createElement('div'));
  place.className = 'terminal';
  const family = 'ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace';
  const term = new Terminal({ cols: columns, rows: lines, scrollback: 5000, fontFamily: family, fontSize: 15,
    // Links are the guest's to make, and lead where it likes.
    linkHandler: { activate: () => {} },
    theme: { background: '#10141b', foreground: '#dfe4ec', cursor: '#86abff', selectionBackground: '#3b5488' } });
  term.open(place);
  term.textarea.setAttribute('aria-label', 'Serial console; Ctrl+] leaves it');
  let socket = null;
  const encoder = new TextEncoder();
  const send = (bytes) => { if (socket?.readyState === WebSocket.OPEN) socket.send(bytes); };
  term.onData((text) => send(encoder.encode(text)));
  term.onBinary((text) => send(Uint8Array.from(text, (c) => c.charCodeAt(0))));
  const view = {
    attach(to) {
      socket = to;
      to.addEventListener('message', ({ data }) => term.write(new Uint8Array(data)));
    },
    // As large as all columns and lines fit.
    fit() {
      const measure = document.createElement('canvas').getContext('2d');
      measure.font = `100px ${family}`;
      const wide = (place.clientWidth - 16) / columns / (measure.measureText('W').width / 100);
      const high = place.clientHeight / lines / 1.2;
      term.options.fontSize = Math.max(5, Math.min(22, Math.floor(2 * Math.min(wide, high)) / 2));
    },
    focus: () => term.focus(),
    end: () => term.dispose(),
  };
  view.fit();
  return view;
}

/** screen is a graphics device's. */
function screen(surface) {
  let rfb = null;
  const place = surface.appendChild(document.createElement('div'));
  return {
    attach(to) {
      rfb = new RFB(place, to, { shared: true });
      rfb.scaleViewport = true;
      rfb.background = 'transparent';
      place.querySelector('canvas').setAttribute('aria-label', 'Screen of the guest; Ctrl+] leaves it');
      place.querySelector('canvas').setAttribute('role', 'application');
    },
    focus: () => rfb?.focus({ preventScroll: true }),
    // The guest has seen these pressed, and would not see them let go.
    release: () => { for (const [symbol, code] of [[0xffe3, 'ControlLeft'], [0xffe4, 'ControlRight'], [0xffe9, 'AltLeft']]) rfb?.sendKey(symbol, code, false); },
    ctrlAltDel: () => rfb?.sendCtrlAltDel(),
    end: () => { rfb?.disconnect(); rfb = null; place.remove(); },
  };
}
