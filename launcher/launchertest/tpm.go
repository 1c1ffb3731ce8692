package launchertest

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Commands of a guest's shell that write a TPM 2.0 command to /dev/tpm0 and print the answer as hexadecimal bytes. The
// TPM's format is that of the TPM 2.0 Library, Part 3. A guest needs nothing but a shell with printf, head and od.

const (
	tpmExtend      = 0x182
	tpmDefineSpace = 0x12a
	tpmWrite       = 0x137
	tpmRead        = 0x14e

	tpmOwner   = 0x40000001
	tpmIndex   = 0x01500016
	tpmSHA256  = 0x000b
	nvBytes    = 8
	nvAuthRead = 1 << 18 // TPMA_NV_AUTHREAD: by the index' own password, which is empty
	nvAuth     = 1 << 2  // TPMA_NV_AUTHWRITE
)

// ExtendPCR extends a PCR's SHA-256 bank by a digest.
func ExtendPCR(pcr uint32, digest [32]byte) string {
	return tpmCommand(tpmExtend, []uint32{pcr}, binary.BigEndian.AppendUint32(nil, 1), binary.BigEndian.AppendUint16(nil, tpmSHA256), digest[:])
}

// DefineNV makes an index of eight bytes in the TPM's own storage.
func DefineNV() string {
	public := binary.BigEndian.AppendUint32(nil, tpmIndex)
	public = binary.BigEndian.AppendUint16(public, tpmSHA256)
	public = binary.BigEndian.AppendUint32(public, nvAuth|nvAuthRead)
	public = binary.BigEndian.AppendUint32(public, nvBytes) // no policy, and the size
	return tpmCommand(tpmDefineSpace, []uint32{tpmOwner}, []byte{0, 0}, binary.BigEndian.AppendUint16(nil, uint16(len(public))), public)
}

// WriteNV writes to the index.
func WriteNV(data [nvBytes]byte) string {
	return tpmCommand(tpmWrite, []uint32{tpmIndex, tpmIndex}, []byte{0, nvBytes}, data[:], []byte{0, 0})
}

// ReadNV reads the index. The data is among the answer's bytes.
func ReadNV() string {
	return tpmCommand(tpmRead, []uint32{tpmIndex, tpmIndex}, []byte{0, nvBytes, 0, 0})
}

// tpmCommand returns a command with an empty password.
func tpmCommand(code uint32, handles []uint32, parameters ...[]byte) string {
	body := binary.BigEndian.AppendUint32(nil, code)
	for _, h := range handles {
		body = binary.BigEndian.AppendUint32(body, h)
	}
	body = append(body, 0, 0, 0, 9, 0x40, 0, 0, 9, 0, 0, 0, 0, 0) // TPM_RS_PW, with no nonce, attributes or password
	for _, p := range parameters {
		body = append(body, p...)
	}
	message := binary.BigEndian.AppendUint16(nil, 0x8002) // TPM_ST_SESSIONS
	message = append(binary.BigEndian.AppendUint32(message, uint32(len(message)+4+len(body))), body...)
	var octal strings.Builder
	for _, b := range message {
		fmt.Fprintf(&octal, `\%03o`, b)
	}
	// printf of a shell may write in pieces, and the TPM takes a command only as a whole.
	return "exec 3<>/dev/tpm0; printf '" + octal.String() + "' | dd bs=4096 iflag=fullblock >&3 2>/dev/null; dd bs=4096 count=1 <&3 2>/dev/null | od -An -v -tx1 | tr -d ' \\n'; exec 3>&-"
}
