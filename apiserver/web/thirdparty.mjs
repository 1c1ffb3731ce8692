// Writes thirdparty/, which virt-api serves beside the page, from the packages
// of package-lock.json: node thirdparty.mjs [FOLDER]. Other than what npm ships,
// noVNC is made one file: RBAC knows of no folders below a resource.
import { build } from 'esbuild';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import path from 'node:path';

const here = path.dirname(fileURLToPath(import.meta.url));
const folder = process.argv[2] ?? path.join(here, 'thirdparty');
const from = (...parts) => path.join(here, 'node_modules', ...parts);
const text = (...parts) => readFile(from(...parts), 'utf8');
const lock = JSON.parse(await readFile(path.join(here, 'package-lock.json'), 'utf8'));

// origin says which package a file is from.
function origin(name) {
  const entry = lock.packages[`node_modules/${name}`];
  return `${name} ${entry.version}, ${entry.license}, ${entry.integrity}`;
}

// plain is the file without the reference to a source map, which is not served.
const plain = (script) => script.replace(/\n?\/\/# sourceMappingURL=.*\s*$/, '\n');

await mkdir(folder, { recursive: true });
const write = (name, content) => writeFile(path.join(folder, name), content);

await build({
  entryPoints: [from('@novnc/novnc/core/rfb.js')],
  outfile: path.join(folder, 'novnc.js'),
  bundle: true, format: 'esm', minify: true, charset: 'utf8', target: 'es2022', legalComments: 'none', logLevel: 'warning',
  banner: { js: `/* ${origin('@novnc/novnc')}; licenses: licenses.txt */` },
});
await write('xterm.js', plain(await text('@xterm/xterm/lib/xterm.mjs')));
await write('xterm.css', await text('@xterm/xterm/css/xterm.css'));
await write('licenses.txt', [
  'What the page shows consoles with, and its licenses. The source is in the npm packages that are named, whose integrity npm checks.',
  `\n== ${origin('@novnc/novnc')}\nOf it core/ and vendor/pako/, made one file, novnc.js.\n`,
  await text('@novnc/novnc/LICENSE.txt'),
  `\n-- AUTHORS\n`, await text('@novnc/novnc/AUTHORS'),
  `\n-- vendor/pako/LICENSE\n`, await text('@novnc/novnc/vendor/pako/LICENSE'),
  `\n-- docs/LICENSE.MPL-2.0\n`, await text('@novnc/novnc/docs/LICENSE.MPL-2.0'),
  `\n== ${origin('@xterm/xterm')}\nxterm.js and xterm.css.\n`, await text('@xterm/xterm/LICENSE'),
].join('\n'));
