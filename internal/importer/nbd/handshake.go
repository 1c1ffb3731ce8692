package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	greetingMagic = 0x4e42444d41474943 // "NBDMAGIC"
	optionMagic   = 0x49484156454f5054 // "IHAVEOPT"
	answerMagic   = 0x3e889045565a9

	// flagsFixed and flagsNoZeroes are the handshake's, of the server and of the client.
	flagsFixed    = 1
	flagsNoZeroes = 2
	// transmissionFlags: the flags are set, and the export is read-only.
	transmissionFlags = 1<<0 | 1<<1

	optionExportName = 1
	optionAbort      = 2
	optionList       = 3
	optionInfo       = 6
	optionGo         = 7

	answerAck         = 1
	answerServer      = 2
	answerInfo        = 3
	answerUnsupported = 1<<31 + 1
	answerInvalid     = 1<<31 + 3
	answerUnknown     = 1<<31 + 6

	infoExport    = 0
	infoBlockSize = 3
)

// negotiate is the handshake. It returns nil when the client wants to read.
func (s *Server) negotiate(conn io.ReadWriter) error {
	greeting := binary.BigEndian.AppendUint64(nil, greetingMagic)
	greeting = binary.BigEndian.AppendUint64(greeting, optionMagic)
	greeting = binary.BigEndian.AppendUint16(greeting, flagsFixed|flagsNoZeroes)
	if _, err := conn.Write(greeting); err != nil {
		return fmt.Errorf("greet the client: %w", err)
	}
	var flags uint32
	if err := binary.Read(conn, binary.BigEndian, &flags); err != nil {
		return fmt.Errorf("read the client's flags: %w", err)
	}
	if flags&flagsFixed == 0 || flags&^(flagsFixed|flagsNoZeroes) != 0 {
		return fmt.Errorf("the client's flags are %#x", flags)
	}
	for range maxOptions {
		option, data, err := readOption(conn)
		if err != nil {
			return err
		}
		if option == optionExportName {
			return s.exportName(conn, data, flags&flagsNoZeroes == 0)
		}
		reply, ready, err := s.option(option, data)
		if _, failed := conn.Write(reply); failed != nil {
			return fmt.Errorf("answer an option: %w", failed)
		}
		if ready || err != nil {
			return err
		}
	}
	return errors.New("the client sends options without end")
}

func readOption(conn io.Reader) (option uint32, data []byte, err error) {
	var header struct {
		Magic          uint64
		Option, Length uint32
	}
	if err := binary.Read(conn, binary.BigEndian, &header); err != nil {
		return 0, nil, fmt.Errorf("read an option: %w", err)
	}
	if header.Magic != optionMagic || header.Length > maxOption {
		return 0, nil, errors.New("read an option: it is none, or too long")
	}
	data = make([]byte, header.Length)
	if _, err := io.ReadFull(conn, data); err != nil {
		return 0, nil, fmt.Errorf("read an option: %w", err)
	}
	return header.Option, data, nil
}

// exportName is the old way to choose an export. It has no answer but the export, or the end.
func (s *Server) exportName(conn io.Writer, name []byte, zeroes bool) error {
	if len(name) > 0 {
		return errors.New("the client wants an export that is not there")
	}
	reply := binary.BigEndian.AppendUint64(nil, uint64(s.size))
	reply = binary.BigEndian.AppendUint16(reply, transmissionFlags)
	if zeroes {
		reply = append(reply, make([]byte, 124)...)
	}
	if _, err := conn.Write(reply); err != nil {
		return fmt.Errorf("answer an option: %w", err)
	}
	return nil
}

// option answers an option. ready: the client may read now.
func (s *Server) option(option uint32, data []byte) (reply []byte, ready bool, err error) {
	switch option {
	case optionAbort:
		return optionReply(option, answerAck, nil), false, errEnd
	case optionList:
		if len(data) > 0 {
			return optionReply(option, answerInvalid, nil), false, nil
		}
		// One export, of no name.
		reply = optionReply(option, answerServer, make([]byte, 4))
		return append(reply, optionReply(option, answerAck, nil)...), false, nil
	case optionInfo, optionGo:
		name, ok := wantedExport(data)
		switch {
		case !ok:
			return optionReply(option, answerInvalid, nil), false, nil
		case name != "":
			return optionReply(option, answerUnknown, nil), false, nil
		}
		return append(s.info(option), optionReply(option, answerAck, nil)...), option == optionGo, nil
	}
	return optionReply(option, answerUnsupported, nil), false, nil
}

// wantedExport is the name of the export that an INFO or a GO is about.
func wantedExport(data []byte) (string, bool) {
	if len(data) < 6 {
		return "", false
	}
	length := uint64(binary.BigEndian.Uint32(data))
	if length > uint64(len(data)-6) {
		return "", false
	}
	requests := binary.BigEndian.Uint16(data[4+length:])
	return string(data[4 : 4+length]), uint64(len(data)) == 6+length+2*uint64(requests)
}

// info describes the export.
func (s *Server) info(option uint32) []byte {
	export := binary.BigEndian.AppendUint16(nil, infoExport)
	export = binary.BigEndian.AppendUint64(export, uint64(s.size))
	export = binary.BigEndian.AppendUint16(export, transmissionFlags)
	blocks := binary.BigEndian.AppendUint16(nil, infoBlockSize)
	for _, size := range []uint32{1, 64 << 10, maxRead} { // the smallest, the best, the largest
		blocks = binary.BigEndian.AppendUint32(blocks, size)
	}
	return append(optionReply(option, answerInfo, export), optionReply(option, answerInfo, blocks)...)
}

func optionReply(option, kind uint32, data []byte) []byte {
	reply := binary.BigEndian.AppendUint64(nil, answerMagic)
	reply = binary.BigEndian.AppendUint32(reply, option)
	reply = binary.BigEndian.AppendUint32(reply, kind)
	reply = binary.BigEndian.AppendUint32(reply, uint32(len(data)))
	return append(reply, data...)
}
